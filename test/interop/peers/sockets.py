"""The sockets of one rank, with the options that SGLang sets (wire.md 1.0)."""

from __future__ import annotations

import time

import zmq

from .dialects import Failure, expect
from .primitives import Frames

PATIENCE = 30.0  # seconds; a deadline, never a delay
LOCALHOST = "127.0.0.1"


class Endpoint:
    """A PULL socket, and PUSH sockets to others."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], to_prefill: bool) -> None:
        self.context = context
        self.to_prefill = to_prefill
        self.ip = LOCALHOST
        self._push: dict[str, zmq.Socket[bytes]] = {}
        self.port = 0
        self.bind()

    def bind(self, port: int = 0) -> None:
        self.pull = self.context.socket(zmq.PULL)
        self.pull.setsockopt(zmq.LINGER, 0)
        if port:
            until(f"port {port} is free again", lambda: self._bound(port))
            self.port = port
        else:
            self.port = self.pull.bind_to_random_port(f"tcp://{self.ip}")

    def _bound(self, port: int) -> bool:
        try:
            self.pull.bind(f"tcp://{self.ip}:{port}")
        except zmq.ZMQError:  # libzmq closes a socket a little after close() has returned
            return False
        return True

    @property
    def address(self) -> str:
        return f"{self.ip}:{self.port}"

    def unbind(self) -> None:
        """Lose every connection that others have to us, and what is in them."""
        self.pull.close()

    def send(self, address: str, frames: Frames) -> None:
        if address not in self._push:
            s = self.context.socket(zmq.PUSH)
            s.setsockopt(zmq.LINGER, 0)
            if self.to_prefill:
                s.setsockopt(zmq.SNDTIMEO, 1000)
            else:
                s.setsockopt(zmq.RECONNECT_IVL, -1)
                s.setsockopt(zmq.SNDTIMEO, 30000)
                s.setsockopt(zmq.TCP_KEEPALIVE, 1)
            s.connect(f"tcp://{address}")
            self._push[address] = s
        self._push[address].send_multipart(frames)

    def receive(self, patience: float = PATIENCE) -> Frames:
        frames = self.poll(patience)
        if frames is None:
            raise Failure(f"nothing came to {self.address} within {patience} s")
        return frames

    def poll(self, patience: float = 0.0) -> Frames | None:
        """The next message; None: there is none."""
        if not self.pull.poll(int(patience * 1000)):
            return None
        return self.pull.recv_multipart()

    def expect(self, frames: Frames) -> None:
        """The next message is this one, byte for byte."""
        got = self.receive()
        expect(got == frames, f"received {got!r}, want {frames!r}")

    def close(self) -> None:
        self.pull.close()
        for s in self._push.values():
            s.close()


def until(what: str, holds, patience: float = PATIENCE) -> None:  # type: ignore[no-untyped-def]
    """Ask again until it holds."""
    deadline = time.monotonic() + patience
    while not holds():
        if time.monotonic() > deadline:
            raise Failure(f"not within {patience} s: {what}")
        time.sleep(0.01)
