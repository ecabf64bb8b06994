"""The calls of the engine API as data: method, JSON request, type of the answer.

Both clients send them; what a request looks like is said once, here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from . import types as t

T = TypeVar("T")

SERVICE = "/pdlog.engine.v1.Engine/"
_U32, _U64 = 1 << 32, 1 << 64


@dataclass(frozen=True)
class Call(Generic[T]):
    method: str
    request: dict[str, Any]
    answer: type[T]

    @property
    def path(self) -> str:
        return SERVICE + self.method


def u32(name: str, value: int) -> int:
    return _unsigned(name, value, _U32)


def u64(name: str, value: int) -> str:
    """A 64-bit number as protobuf JSON writes it: exact, as a string."""
    return str(_unsigned(name, value, _U64))


def _unsigned(name: str, value: int, end: int) -> int:
    value = value.__index__()  # takes numpy's integers, refuses floats
    if not 0 <= value < end:
        raise ValueError(f"{name}: {value} is not in [0, {end})")
    return value


def u32s(name: str, values: Iterable[int]) -> list[int]:
    return [u32(name, v) for v in values]


def _room(method: str, room: int) -> Call[t.Done]:
    return Call(method, {"room": u64("room", room)}, t.Done)


def register_memory(
    rank: int, path: str, page_bytes: int, pages: int, aux_bytes: int, aux_rows: int, offset: int, aux_offset: int, passed: bool = False
) -> Call[t.Registered]:
    return Call(
        "RegisterMemory",
        {
            "rank": u32("rank", rank),
            "path": path,
            "offset": u64("offset", offset),
            "pageBytes": u64("page_bytes", page_bytes),
            "pages": u64("pages", pages),
            "auxOffset": u64("aux_offset", aux_offset),
            "auxBytes": u64("aux_bytes", aux_bytes),
            "auxRows": u64("aux_rows", aux_rows),
            "passedFd": passed,
        },
        t.Registered,
    )


def open_receive(
    room: int,
    pages: Sequence[int] | None,
    count: int,
    aux: int | None,
    prefill: str,
    pairs: Sequence[t.Pair],
    reserve_only: bool,
    request_id: str,
    trace_id: str,
    timeout: float | None = None,
) -> Call[t.Reserved]:
    if (pages is None or len(pages) == 0) == (count == 0):
        raise ValueError("give either pages or count")
    request: dict[str, Any] = {
        "room": u64("room", room),
        "pages": u32s("pages", pages if pages is not None else ()),
        "count": u32("count", count),
        "prefill": prefill,
        "pairs": [
            {"rank": p.rank, "to": p.to, "dummy": p.dummy, "required": u32("required", p.required)} for p in pairs
        ],
        "reserveOnly": reserve_only,
        "requestId": request_id,
        "traceId": trace_id,
        "timeoutMs": _limit(timeout),
    }
    if aux is not None:
        request["aux"] = u32("aux", aux)
    return Call("OpenReceive", request, t.Reserved)


def publish(room: int) -> Call[t.Done]:
    return _room("Publish", room)


def finish(room: int) -> Call[t.Done]:
    return _room("Finish", room)


def clear(room: int) -> Call[t.Done]:
    return _room("Clear", room)


def write_done(token: int, outcome: t.WriteOutcome, reason: str) -> Call[t.Done]:
    return Call("WriteDone", {"token": u64("token", token), "outcome": outcome.value, "reason": reason}, t.Done)


def destination(address: str) -> Call[t.Destination]:
    return Call("Destination", {"address": address}, t.Destination)


def notify(notifications: Iterable[bytes], rank: int) -> Call[t.Notified]:
    texts = [base64.b64encode(n).decode() for n in notifications]
    return Call("Notify", {"rank": u32("rank", rank), "notifications": texts}, t.Notified)


def report_page(room: int, page: int, to: str, detail: str) -> Call[t.Done]:
    request = {"room": u64("room", room), "page": u32("page", page), "to": to, "detail": detail}
    return Call("ReportPage", request, t.Done)


def open_send(
    room: int, ranks: Sequence[int], request_id: str, trace_id: str, timeout: float | None = None
) -> Call[t.Done]:
    request = {
        "room": u64("room", room),
        "ranks": u32s("ranks", ranks),
        "requestId": request_id,
        "traceId": trace_id,
        "timeoutMs": _limit(timeout),
    }
    return Call("OpenSend", request, t.Done)


def send_chunk(
    room: int,
    chunk: int,
    source_pages: Sequence[int],
    first: int | None,
    pages: Sequence[int] | None,
    rank: int,
    source_aux: int,
    last: bool,
    to: Sequence[str],
    after: Sequence[t.Point] = (),
) -> Call[t.Done]:
    if (first is None) == (pages is None):
        raise ValueError("give either first (position in the room's list) or pages (destination numbers)")
    request: dict[str, Any] = {
        "room": u64("room", room),
        "rank": u32("rank", rank),
        "chunk": u32("chunk", chunk),
        "sourcePages": u32s("source_pages", source_pages),
        "sourceAux": u32("source_aux", source_aux),
        "last": last,
        "to": list(to),
    }
    if after:
        request["after"] = _points(after)
    if pages is not None:
        request["pages"] = u32s("pages", pages)
    elif first is not None:
        request["first"], request["count"] = u32("first", first), len(request["sourcePages"])
    return Call("SendChunk", request, t.Done)


def _limit(timeout: float | None) -> str:
    """A room's own limit in ms; none is 0."""
    return u64("timeout", 0 if timeout is None else max(round(timeout * 1000), 1))


def _points(points: Sequence[t.Point]) -> list[dict[str, Any]]:
    return [{"timeline": u32("timeline", p.timeline), "value": u64("value", p.value)} for p in points]


def signal(points: Sequence[t.Point]) -> Call[t.Signalled]:
    return Call("Signal", {"points": _points(points)}, t.Signalled)


def poll(rooms: Sequence[int]) -> Call[t.Polled]:
    return Call("Poll", {"rooms": [u64("room", r) for r in rooms]}, t.Polled)


def acknowledge(seq: int) -> Call[t.Nothing]:
    return Call("Acknowledge", {"seq": u64("seq", seq)}, t.Nothing)


def watch(after_seq: int) -> dict[str, Any]:
    """The request of a Watch stream."""
    return {"afterSeq": u64("after_seq", after_seq)}


def abort(room: int, reason: str) -> Call[t.Done]:
    return Call("Abort", {"room": u64("room", room), "reason": reason}, t.Done)


def status() -> Call[t.Status]:
    return Call("Status", {}, t.Status)


def rooms(limit: int) -> Call[t.Rooms]:
    return Call("Rooms", {"limit": u32("limit", limit)}, t.Rooms)


def room(number: int) -> Call[t.Rooms]:
    return Call("Room", {"room": u64("room", number)}, t.Rooms)


def peers() -> Call[t.Peers]:
    return Call("Peers", {}, t.Peers)


def pages(every: bool) -> Call[t.Pages]:
    return Call("Pages", {"all": every}, t.Pages)
