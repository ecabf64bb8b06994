"""What the node answers, as frozen dataclasses.

Names are those of engine.proto. 64-bit numbers are exact: the protobuf JSON
form writes them as strings, here they are ``int``. A key this package does not
know is passed over, a key that is left out has its default.
"""

from __future__ import annotations

import base64
import enum
import functools
import typing
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


class NoticeKind(str, enum.Enum):
    """What a notice is about."""

    UNKNOWN = "KIND_UNSPECIFIED"  # newer than this package
    READY = "KIND_READY"
    SUCCEEDED = "KIND_SUCCEEDED"
    FAILED = "KIND_FAILED"
    RELEASED = "KIND_RELEASED"
    SOURCE_RELEASED = "KIND_SOURCE_RELEASED"
    OPEN = "KIND_OPEN"
    HELD = "KIND_HELD"
    CAUGHT_UP = "KIND_CAUGHT_UP"
    STOPPING = "KIND_STOPPING"
    LOG_FAILED = "KIND_LOG_FAILED"
    WRITE = "KIND_WRITE"

    @classmethod
    def _missing_(cls, value: object) -> NoticeKind:
        return cls.UNKNOWN


class WriteOutcome(str, enum.Enum):
    """How a write ended that the engine was asked to make."""

    COMPLETED = "OUTCOME_COMPLETED"  # every byte is in place
    FAILED = "OUTCOME_FAILED"  # not all are, and the library proves that nothing lands any more
    UNCERTAIN = "OUTCOME_UNCERTAIN"  # parts may still land; one of the others is owed


@dataclass(frozen=True)
class EngineWrite:
    """One chunk to an SGLang rank, for the engine's own library to write."""

    token: int = 0
    rank: int = 0
    to: str = ""
    address: str = ""
    session: str = ""
    chunk: int = 0
    pages: tuple[int, ...] = ()
    source_pages: tuple[int, ...] = ()
    last: bool = False
    aux: int = -1  # destination row; -1 = none
    source_aux: int = 0
    notifications: tuple[str, ...] = ()  # NIXL: to send with the data, in this order


@dataclass(frozen=True)
class Destination:
    """The frames of a decode rank's registration."""

    frames: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Notified:
    malformed: int = 0  # notifications that could not be read


@dataclass(frozen=True)
class Notice:
    """One thing the node tells its engine."""

    kind: NoticeKind = NoticeKind.UNKNOWN
    room: int = 0
    room_seq: int = 0
    pages: tuple[int, ...] = ()
    aux: int = 0
    basis: str = ""
    unsafe: bool = False
    cause: str = ""
    reason: str = ""
    who: str = ""
    resumed: bool = False
    seq: int = 0
    write: EngineWrite = EngineWrite()  # of WRITE


@dataclass(frozen=True)
class Pair:
    """A prefill rank and the local decode rank it writes to ("node/rank")."""

    rank: str
    to: str
    dummy: bool = False
    required: int = 0


@dataclass(frozen=True)
class Point:
    """A value of one of the engine's timelines: a counter that only grows."""

    timeline: int
    value: int


class Poll(str, enum.Enum):
    """How a room does, in SGLang's terms."""

    FAILED = "POLL_FAILED"
    BOOTSTRAPPING = "POLL_BOOTSTRAPPING"
    WAITING_FOR_INPUT = "POLL_WAITING_FOR_INPUT"
    TRANSFERRING = "POLL_TRANSFERRING"
    SUCCESS = "POLL_SUCCESS"
    UNKNOWN = "POLL_UNKNOWN"  # not a room of the node

    @classmethod
    def _missing_(cls, value: object) -> Poll:
        return cls.UNKNOWN


@dataclass(frozen=True)
class RoomState:
    """What Poll says of a room."""

    room: int = 0
    room_seq: int = 0
    poll: Poll = Poll.FAILED  # protobuf JSON leaves the first value out
    pages_free: bool = False
    cause: str = ""
    reason: str = ""
    basis: str = ""
    unsafe: bool = False


@dataclass(frozen=True)
class Polled:
    rooms: tuple[RoomState, ...] = ()


@dataclass(frozen=True)
class Signalled:
    released: int = 0  # chunks that left


@dataclass(frozen=True)
class Nothing:
    pass


@dataclass(frozen=True)
class Done:
    room_seq: int = 0


@dataclass(frozen=True)
class Registered:
    ready: bool = False  # every local rank has its memory


@dataclass(frozen=True)
class Reserved:
    """The pages and the aux row of a room that was opened."""

    room_seq: int = 0
    pages: tuple[int, ...] = ()
    aux: int = 0


@dataclass(frozen=True)
class Status:
    node: str = ""
    role: str = ""
    boot: int = 0
    incarnation: int = 0
    log_id: str = ""
    log_dir: str = ""
    version: str = ""
    dialect: str = ""
    provider: str = ""
    release_policy: str = ""
    ready: bool = False
    not_ready: str = ""
    draining: bool = False
    last_seq: int = 0
    durable_seq: int = 0
    mirror: bool = False
    mirror_lag: int = 0
    mirror_error: str = ""
    nats_url: str = ""
    bootstrap: str = ""
    rank_addresses: tuple[str, ...] = ()
    pages: int = 0
    pages_free: int = 0
    pages_owned: int = 0
    pages_held: int = 0
    pages_quarantined: int = 0
    rooms: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    uptime_seconds: float = 0.0
    http: str = ""
    engine_listen: str = ""
    engine: bool = False
    mirror_lag_ms: int = 0


@dataclass(frozen=True)
class PairView:
    rank: str = ""
    to: str = ""
    state: str = ""
    dummy: bool = False
    evidence: str = ""


@dataclass(frozen=True)
class RoomView:
    room: int = 0
    room_seq: int = 0
    state: str = ""
    pages: tuple[int, ...] = ()
    aux: int = 0
    generation: int = 0
    outcome: str = ""
    cause: str = ""
    reason: str = ""
    basis: str = ""
    pairs: tuple[PairView, ...] = ()
    request_id: str = ""
    trace_id: str = ""
    opened_ms: int = 0
    deadline_ms: int = 0
    outstanding: int = 0
    missing: tuple[str, ...] = ()
    fenced: bool = False
    waiting_chunks: int = 0


@dataclass(frozen=True)
class Rooms:
    rooms: tuple[RoomView, ...] = ()


@dataclass(frozen=True)
class PeerRankView:
    rank: str = ""
    address: str = ""
    wire_id: int = 0


@dataclass(frozen=True)
class PeerView:
    node: str = ""
    state: str = ""
    pdlog: bool = False
    boot: int = 0
    incarnation: int = 0
    fence: str = ""
    ack_form: str = ""
    weak: bool = False
    incompatible: str = ""
    ranks: tuple[PeerRankView, ...] = ()
    bootstrap: str = ""


@dataclass(frozen=True)
class Peers:
    peers: tuple[PeerView, ...] = ()


@dataclass(frozen=True)
class PageView:
    page: int = 0
    state: str = ""
    room: int = 0
    room_seq: int = 0


@dataclass(frozen=True)
class Pages:
    pages: tuple[PageView, ...] = ()
    free: int = 0
    owned: int = 0
    held: int = 0
    quarantined: int = 0


def load(cls: type[T], obj: Any) -> T:
    """Build a dataclass from its protobuf JSON form."""
    if not isinstance(obj, dict):
        raise ValueError(f"{cls.__name__}: want an object, have {type(obj).__name__}")
    kind: type = cls
    return cls(**{name: make(obj[key]) for name, key, make in _plan(kind) if key in obj})


@functools.cache
def _plan(cls: type) -> list[tuple[str, str, Any]]:
    hints = typing.get_type_hints(cls)
    return [(f.name, camel(f.name), _maker(hints[f.name])) for f in fields(cls)]


def _maker(hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        one = _maker(args[0])
        return lambda v: tuple(one(x) for x in v)
    if origin is dict:
        key, value = _maker(args[0]), _maker(args[1])
        return lambda v: {key(k): value(x) for k, x in v.items()}
    if is_dataclass(hint):
        return functools.partial(load, hint)
    if hint is bytes:
        return base64.b64decode
    return hint  # int("18446744073709551615"), float, str, bool, NoticeKind


def camel(name: str) -> str:
    """The JSON name of a protobuf field."""
    head, *rest = name.split("_")
    return head + "".join(w.capitalize() for w in rest)
