"""Junk frames at line rate."""

from __future__ import annotations

import json
import random
import socket
import threading
import time

import zmq

from .dialects import Dialect
from .primitives import Frames, dec

TAGS = [
    b"ABORT", b"ABORT_ACK", b"None", b"NixlMsgGuard", b"MoriMsgGuard", b"KV_STATUS", b"STAGING_REQ", b"STAGING_RSP", b"WATERMARK",
    b"CHUNK_READY", b"AUX_DATA", b"BOOTSTRAP", b"UniflowMsgGuard", b"4242", b"-1", b"4_242", b"", b"\xff\xfe", b"abort", b"PDX1",
]  # fmt: skip
PARTS = [b"", b"0", b"7", b"4242", b"-4", b"127.0.0.1", b"fe80::1", b"5000", b"99999999999999999999", b"x", b"\x00" * 3, b"\xff" * 16,
         b"None", b"10.0.0.1:17800", b"PDX1\x0a\x01d", b"\x01\x00\x00\x00\x90\x01\x00\x00", b"\xdd\xff\xff\xff\xff"]  # fmt: skip


def messages(dialect: Dialect, at_prefill: bool, count: int, seed: int) -> list[Frames]:
    """Messages of which none is good: wrong tags, wrong counts, bad numbers, counts
    that ask for gigabytes, rooms and endpoints that nobody knows, some long ones."""
    draw = random.Random(seed)
    out: list[Frames] = []
    while len(out) < count:
        tag = draw.choice(TAGS)
        f = [tag, *(draw.choice(PARTS) for _ in range(draw.randrange(24)))]
        if len(out) % 500 == 0:
            f = [tag, draw.randbytes(1 << 20)]
        elif len(out) % 50 == 0:
            f = [draw.randbytes(draw.randrange(64)) for _ in range(draw.randrange(1, 200))]
        if not registers(f):
            out.append(f)
    unknown = dec(977_000_000)
    if at_prefill:
        out.append([b"ABORT", unknown, b"127.0.0.1", b"9", b"1"])
    else:
        out.append([b"ABORT_ACK", unknown, b"0", b"1"])
        out.append(dialect.status(977_000_000, 4, 0))
    return out


def registers(f: Frames) -> bool:
    """It might be a good registration: anybody may register (F42), so that is no junk."""
    return f[0] == b"None" or f[1:2] == [b"None"]


class Flood:
    """Sends junk from two threads to the PULL socket, and raw bytes to both ports."""

    def __init__(self, dialect: Dialect, pull: str, http: str, at_prefill: bool) -> None:
        self.sent = 0
        self.raw = 0
        self._stop = threading.Event()
        self._until = 0.0
        self._counts = [0, 0]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        targets = [t for t in (pull, http) if t]
        self._threads = [
            threading.Thread(target=self._push, args=(i, pull, messages(dialect, at_prefill, 2000, i)), daemon=True) for i in range(2)
        ]
        self._threads.append(threading.Thread(target=self._bytes, args=(targets,), daemon=True))

    def running(self, seconds: float) -> bool:
        """Still within the time, which begins with the first call."""
        self._until = self._until or time.monotonic() + seconds
        return time.monotonic() < self._until

    def _push(self, index: int, pull: str, corpus: list[Frames]) -> None:
        s = self._context.socket(zmq.PUSH)
        s.setsockopt(zmq.LINGER, 0)
        s.setsockopt(zmq.SNDTIMEO, 100)
        s.connect(f"tcp://{pull}")
        while not self._stop.is_set():
            for f in corpus:
                try:
                    s.send_multipart(f)
                    self._counts[index] += 1
                except zmq.Again:
                    pass
                if self._stop.is_set():
                    break
        s.close()

    def _bytes(self, targets: list[str]) -> None:
        draw = random.Random(7)
        while not self._stop.is_set():
            for t in targets:
                host, _, port = t.rpartition(":")
                try:
                    with socket.create_connection((host, int(port)), timeout=1) as c:
                        if draw.random() < 0.5:  # as if a ZMTP greeting began
                            c.sendall(b"\xff" + bytes(8) + b"\x7f\x03")
                        c.sendall(draw.randbytes(draw.randrange(1, 4096)))
                        self.raw += 1
                except OSError:
                    pass
            self._stop.wait(0.01)

    def __enter__(self) -> Flood:
        for t in self._threads:
            t.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for t in self._threads:
            t.join()
        self._context.destroy(linger=0)
        self.sent = sum(self._counts)


def report(f: Flood, rooms: int) -> None:
    """Tell the Go side what was done."""
    print(json.dumps({"junk": f.sent, "raw": f.raw, "rooms": rooms}), flush=True)
