"""What a call can come to besides an answer."""

from __future__ import annotations

import base64
import json
from typing import Any


class PdlogError(Exception):
    """The base of every error of this package."""


class Unavailable(PdlogError):
    """The node could not be reached, or ended before it answered.

    A call that failed this way may have been carried out: watch again, and
    look at the room.
    """


class DeadlineExceeded(PdlogError, TimeoutError):
    """No answer within the call's timeout. It may have been carried out."""


class CallFailed(PdlogError):
    """The node answered with an error that is not a refusal."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


class Refused(CallFailed):
    """The node refused the call, which left nothing behind.

    ``word`` is one of the words of ``Refusal`` in engine.proto, ``detail``
    says more.
    """

    def __init__(self, code: str, word: str, detail: str) -> None:
        super().__init__(code, f"{word}: {detail}")
        self.word = word
        self.detail = detail


class PagesBusy(Refused):
    """Pages are not free, or there are not enough of them."""


class RoomLive(Refused):
    """The room number is in use by a room that has not ended."""


class WeakPeer(Refused):
    """The prefill peer cannot prove a drain, and weak_peers is refuse."""


class Incompatible(Refused):
    """The two sides cannot serve each other: page size, type, or ranks."""


class NotReady(Refused):
    """The node, or the peer, takes no rooms now."""


class LimitReached(Refused):
    """The node holds as many rooms, or waiting chunks, as it was told to."""


class UnknownRoom(Refused):
    """No such room."""


class BadRequest(Refused):
    """The call makes no sense."""


_BY_WORD: dict[str, type[Refused]] = {
    "pages_busy": PagesBusy,
    "room_live": RoomLive,
    "weak_peer": WeakPeer,
    "incompatible": Incompatible,
    "not_ready": NotReady,
    "limit": LimitReached,
    "unknown_room": UnknownRoom,
    "bad_request": BadRequest,
}

_REFUSAL = "pdlog.engine.v1.Refusal"


def from_connect(error: Any) -> PdlogError:
    """The exception of a Connect error object."""
    if not isinstance(error, dict):
        return CallFailed("unknown", str(error))
    code = str(error.get("code", "unknown"))
    message = str(error.get("message", ""))
    details = error.get("details")
    for detail in details if isinstance(details, list) else []:
        if isinstance(detail, dict) and str(detail.get("type", "")).rpartition("/")[2] == _REFUSAL:
            try:
                fields = _strings(_unpadded(str(detail.get("value", ""))))
            except ValueError:
                continue
            word = fields.get(1, "")
            return _BY_WORD.get(word, Refused)(code, word, fields.get(2, ""))
    if code == "unavailable":
        return Unavailable(message or code)
    if code == "deadline_exceeded":
        return DeadlineExceeded(message or code)
    return CallFailed(code, message)


def from_response(status: int, body: bytes) -> PdlogError:
    """The exception of an HTTP answer that is not 200."""
    try:
        error = json.loads(body)
    except ValueError:
        error = None
    if isinstance(error, dict) and "code" in error:
        return from_connect(error)
    return CallFailed(f"http {status}", body[:200].decode("utf-8", "replace").strip())


def _unpadded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def _strings(data: bytes) -> dict[int, str]:
    """The string fields of a protobuf message that has no other kind."""
    out: dict[int, str] = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 != 2:
            raise ValueError(f"field {key >> 3} is not a string")
        size, at = _varint(data, at)
        if at + size > len(data):
            raise ValueError("message is cut off")
        out[key >> 3] = data[at : at + size].decode("utf-8", "replace")
        at += size
    return out


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("bad varint")
