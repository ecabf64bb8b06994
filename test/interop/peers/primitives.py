"""The primitive encodings of SGLang's PD wire (wire.md, section 0 and 1.0)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

Frames = list[bytes]

EMPTY = b""


def dec(number: int) -> bytes:
    """ASCII decimal."""
    return b"%d" % number


def number(frame: bytes) -> int:
    """A strict decimal: what a sender may send, not all that Python's int() takes."""
    value = int(frame.decode("ascii"))
    if dec(value) != frame:
        raise ValueError(f"{frame!r} is no plain decimal")
    return value


def packed(code: str, values: Sequence[int]) -> bytes:
    """A packed little-endian array: Q u64[], I u32[], i i32[]."""
    return struct.pack(f"<{len(values)}{code}", *values)


def unpacked(code: str, frame: bytes) -> list[int]:
    size = struct.calcsize(code)
    if len(frame) % size:
        raise ValueError(f"{len(frame)} bytes are no array of {code}")
    return list(struct.unpack(f"<{len(frame) // size}{code}", frame))


def lists(code: str, values: Sequence[Sequence[int]]) -> bytes:
    """lol(T): a list of integer lists; the empty one is the empty frame."""
    if not values:
        return EMPTY
    parts = [packed(code, v) for v in values]
    return struct.pack(f"<{1 + len(parts)}I", len(parts), *map(len, parts)) + b"".join(parts)


def msgpack(value: Any) -> bytes:
    """msgpack in its shortest forms, for what Mori's descriptors hold."""
    if isinstance(value, bool):
        raise TypeError("no descriptor holds a bool")
    if isinstance(value, int):
        return _msgpack_int(value)
    if isinstance(value, str):
        raw = value.encode()
        return _sized(len(raw), [(31, ">B", 0xA0), (0xFF, ">BB", 0xD9), (0xFFFF, ">BH", 0xDA)]) + raw
    if isinstance(value, bytes):
        return _sized(len(value), [(0xFF, ">BB", 0xC4), (0xFFFF, ">BH", 0xC5)]) + value
    if isinstance(value, list):
        return _sized(len(value), [(15, ">B", 0x90), (0xFFFF, ">BH", 0xDC)]) + b"".join(map(msgpack, value))
    raise TypeError(f"{type(value).__name__} in a descriptor")


def _sized(size: int, forms: list[tuple[int, str, int]]) -> bytes:
    for most, layout, tag in forms:
        if size <= most:
            return struct.pack(layout, tag | size) if layout == ">B" else struct.pack(layout, tag, size)
    raise ValueError(f"{size} does not fit")


def _msgpack_int(n: int) -> bytes:
    if -32 <= n < 128:
        return struct.pack(">b" if n < 0 else ">B", n)
    signed = [(1 << 7, ">Bb", 0xD0), (1 << 15, ">Bh", 0xD1), (1 << 31, ">Bi", 0xD2), (1 << 63, ">Bq", 0xD3)]
    unsigned = [(1 << 8, ">BB", 0xCC), (1 << 16, ">BH", 0xCD), (1 << 32, ">BI", 0xCE), (1 << 64, ">BQ", 0xCF)]
    for end, layout, tag in signed if n < 0 else unsigned:
        if n < end and n >= -end:
            return struct.pack(layout, tag, n)
    raise ValueError(f"{n} does not fit")


def unmsgpack(frame: bytes) -> Any:
    """One msgpack value that fills its frame and is in its shortest form."""
    value, end = _read(frame, 0)
    if end != len(frame) or msgpack(value) != frame:
        raise ValueError(f"not one msgpack value in its shortest form: {frame!r}")
    return value


def _read(b: bytes, at: int) -> tuple[Any, int]:
    tag = b[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag & 0xF0 == 0x90:
        return _read_list(b, at, tag & 0x0F)
    if tag & 0xE0 == 0xA0:
        return b[at : at + (tag & 0x1F)].decode(), at + (tag & 0x1F)
    layout = {
        0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
        0xC4: ">B", 0xC5: ">H", 0xD9: ">B", 0xDA: ">H", 0xDC: ">H",
    }[tag]  # fmt: skip
    (n,) = struct.unpack_from(layout, b, at)
    at += struct.calcsize(layout)
    if tag in (0xC4, 0xC5):
        return b[at : at + n], at + n
    if tag in (0xD9, 0xDA):
        return b[at : at + n].decode(), at + n
    if tag == 0xDC:
        return _read_list(b, at, n)
    return n, at


def _read_list(b: bytes, at: int, count: int) -> tuple[list[Any], int]:
    out = []
    for _ in range(count):
        value, at = _read(b, at)
        out.append(value)
    return out, at
