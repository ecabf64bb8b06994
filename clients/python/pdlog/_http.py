"""As much of HTTP/1.1 and of Connect as the engine API needs, without I/O.

``http.client`` parses headers with the mail parser, which costs more than the
node takes for the whole call; this module reads a head, a counted or a chunked
body, and Connect's envelopes, for both clients.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Generator
from typing import Any

from .errors import CallFailed, PdlogError, Unavailable, from_connect

MAX_HEAD = 1 << 16  # bytes of a response's head
MAX_MESSAGE = 64 << 20  # bytes of one message

_END = 0x02  # flag of the envelope that ends a stream
_COMPRESSED = 0x01


def request(path: str, message: dict[str, Any], timeout: float | None, stream: bool = False) -> bytes:
    """A whole request."""
    body = json.dumps(message, separators=(",", ":")).encode()
    kind = "application/json"
    if stream:
        kind = "application/connect+json"
        body = struct.pack(">BI", 0, len(body)) + body
    deadline = "" if timeout is None else f"Connect-Timeout-Ms: {max(int(timeout * 1000), 1)}\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: pdnode\r\nConnect-Protocol-Version: 1\r\n{deadline}"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Head:
    """Status and headers of a response."""

    __slots__ = ("status", "headers")

    def __init__(self, raw: bytes) -> None:
        lines = raw.decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise CallFailed("internal", f"not HTTP/1.1: {lines[0][:80]!r}")
        self.status = int(words[1])
        self.headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()

    @property
    def chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    @property
    def length(self) -> int:
        try:
            n = int(self.headers.get("content-length", "0"))
        except ValueError:
            n = -1
        if not 0 <= n <= MAX_MESSAGE:
            raise CallFailed("internal", f"content-length {self.headers.get('content-length')!r}")
        return n

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


# A reader is a generator that yields how it wants to be fed (bytes until a
# mark, or a count) and is sent exactly that; it returns its result. The
# clients drive it with a blocking or an awaiting source.
Want = int | bytes
Reader = Generator[Want, bytes, Any]


def read_response() -> Generator[Want, bytes, tuple[Head, bytes]]:
    """One response with its body."""
    head = Head((yield b"\r\n\r\n")[:-4])
    if not head.chunked:
        return head, ((yield head.length) if head.length else b"")
    parts: list[bytes] = []
    size = 0
    while True:
        part = yield from read_chunk()
        if not part:
            return head, b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > MAX_MESSAGE:
            raise CallFailed("internal", "the answer is too large")


def read_head() -> Generator[Want, bytes, Head]:
    """The head of a response alone."""
    return Head((yield b"\r\n\r\n")[:-4])


def read_chunk() -> Generator[Want, bytes, bytes]:
    """One chunk of a chunked body; empty at its end."""
    line = (yield b"\r\n")[:-2].split(b";")[0]
    try:
        size = int(line, 16)
    except ValueError:
        raise CallFailed("internal", f"bad chunk {line[:40]!r}") from None
    if size > MAX_MESSAGE:
        raise CallFailed("internal", "a chunk is too large")
    if size == 0:
        while (yield b"\r\n") != b"\r\n":  # trailers
            pass
        return b""
    return (yield size + 2)[:-2]


class Envelopes:
    """Connect's envelopes out of the chunks of a stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are whole now. Raises what the stream ended with;
        StreamEnd if it ended well."""
        self._buffer += data
        out: list[dict[str, Any]] = []
        while len(self._buffer) >= 5:
            flags, size = struct.unpack_from(">BI", self._buffer)
            if size > MAX_MESSAGE or flags & _COMPRESSED:
                raise CallFailed("internal", f"envelope of {size} bytes, flags {flags}")
            if len(self._buffer) < 5 + size:
                break
            body = bytes(self._buffer[5 : 5 + size])
            del self._buffer[: 5 + size]
            message = json.loads(body or b"{}")
            if flags & _END:
                raise StreamEnd(out, message.get("error"))
            out.append(message)
        return out


class StreamEnd(Exception):
    """The stream is over: what came before its end, and why it ended."""

    def __init__(self, rest: list[dict[str, Any]], error: Any) -> None:
        super().__init__("stream ended")
        self.rest = rest
        self.error: PdlogError | None = from_connect(error) if error else None


def cut_off() -> Unavailable:
    return Unavailable("the node closed the connection")
