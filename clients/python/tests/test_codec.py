"""What needs no node: encoding, decoding, HTTP, refusals."""

from __future__ import annotations

import base64
import json
import unittest
from typing import Any

from pdlog import Notice, NoticeKind, PagesBusy, Refused, RoomView, Status, _calls, _http
from pdlog._http import Reader
from pdlog.errors import BadRequest, CallFailed, Unavailable, from_connect, from_response
from pdlog.types import Destination, load

MAX = (1 << 64) - 1


def drive(reader: Reader, data: bytes) -> tuple[Any, bytes]:
    """Feed a reader from bytes."""
    want, at = next(reader), 0
    while True:
        end = at + want if isinstance(want, int) else data.index(want, at) + len(want)
        piece, at = data[at:end], end
        try:
            want = reader.send(piece)
        except StopIteration as e:
            return e.value, data[at:]


def refusal(word: str, detail: str) -> str:
    raw = b"\x0a" + bytes([len(word)]) + word.encode() + b"\x12" + bytes([len(detail)]) + detail.encode()
    return base64.b64encode(raw).decode().rstrip("=")


class Numbers(unittest.TestCase):
    def test_sixty_four_bits_are_exact_both_ways(self) -> None:
        call = _calls.open_receive(MAX, [1, 2], 0, None, "p0", (), False, "", "")
        self.assertEqual(json.loads(json.dumps(call.request))["room"], str(MAX))
        self.assertEqual(load(Notice, {"room": str(MAX), "roomSeq": "9007199254740993"}).room, MAX)
        self.assertEqual(load(Notice, {"roomSeq": "9007199254740993"}).room_seq, 9007199254740993)

    def test_what_does_not_fit_is_refused_before_it_is_sent(self) -> None:
        for room in (-1, MAX + 1):
            with self.assertRaisesRegex(ValueError, "room"):
                _calls.abort(room, "")
        with self.assertRaises(AttributeError):
            _calls.abort(1.5, "")  # type: ignore[arg-type]
        with self.assertRaisesRegex(ValueError, "pages"):
            _calls.open_receive(1, [1 << 32], 0, None, "", (), False, "", "")
        with self.assertRaisesRegex(ValueError, "either"):
            _calls.open_receive(1, None, 0, None, "", (), False, "", "")
        with self.assertRaisesRegex(ValueError, "either"):
            _calls.send_chunk(1, 0, [1], None, None, 0, 0, False, ())

    def test_aux_row_zero_is_not_absent(self) -> None:
        self.assertEqual(_calls.open_receive(1, None, 1, 0, "", (), False, "", "").request["aux"], 0)
        self.assertNotIn("aux", _calls.open_receive(1, None, 1, None, "", (), False, "", "").request)


    def test_notifications_are_bytes(self) -> None:
        call = _calls.notify([b"7_aux", b"\xff_"], 1)
        self.assertEqual(call.request, {"rank": 1, "notifications": ["N19hdXg=", "/18="]})


class Answers(unittest.TestCase):
    def test_a_write_for_the_engine(self) -> None:
        n = load(Notice, {"kind": "KIND_WRITE", "write": {"token": str(MAX), "pages": [3, 4], "aux": 0}})
        self.assertEqual((n.kind, n.write.token, n.write.pages, n.write.aux), (NoticeKind.WRITE, MAX, (3, 4), 0))
        self.assertEqual(load(Notice, {"kind": "KIND_WRITE", "write": {}}).write.aux, -1)
        self.assertEqual(load(Destination, {"frames": ["Tm9uZQ==", ""]}).frames, (b"None", b""))

    def test_nested_answers(self) -> None:
        view = load(RoomView, {"room": "7", "pages": [3], "pairs": [{"rank": "p0/0", "to": "d0/0", "dummy": True}]})
        self.assertEqual((view.pairs[0].rank, view.pairs[0].dummy, view.pages), ("p0/0", True, (3,)))
        status = load(Status, {"counters": {"effects_done": "12"}, "uptimeSeconds": 1.5, "durableSeq": "9"})
        self.assertEqual((status.counters, status.uptime_seconds, status.durable_seq), ({"effects_done": 12}, 1.5, 9))

    def test_newer_nodes_are_understood(self) -> None:
        notice = load(Notice, {"kind": "KIND_OF_TOMORROW", "novelty": 1})
        self.assertIs(notice.kind, NoticeKind.UNKNOWN)


class Refusals(unittest.TestCase):
    def test_each_word_has_its_class(self) -> None:
        error = from_connect(
            {
                "code": "failed_precondition",
                "message": "pages_busy: page 3",
                "details": [{"type": "pdlog.engine.v1.Refusal", "value": refusal("pages_busy", "page 3")}],
            }
        )
        self.assertIsInstance(error, PagesBusy)
        assert isinstance(error, Refused)
        self.assertEqual((error.word, error.detail, error.code), ("pages_busy", "page 3", "failed_precondition"))

    def test_a_word_of_tomorrow_is_a_refusal(self) -> None:
        error = from_connect({"code": "x", "details": [{"type": "pdlog.engine.v1.Refusal", "value": refusal("new", "")}]})
        self.assertIs(type(error), Refused)

    def test_damaged_details_do_not_hide_the_error(self) -> None:
        for value in ("!", "Cv8", base64.b64encode(b"\x08\x01").decode()):
            error = from_connect({"code": "internal", "details": [{"type": "pdlog.engine.v1.Refusal", "value": value}]})
            self.assertIs(type(error), CallFailed)
        self.assertIsInstance(from_response(503, b"<html>"), CallFailed)
        self.assertIsInstance(from_response(503, b'{"code":"unavailable"}'), Unavailable)
        self.assertFalse(isinstance(from_response(400, b"[]"), BadRequest))


class Http(unittest.TestCase):
    def test_counted_and_chunked_bodies(self) -> None:
        (head, body), rest = drive(_http.read_response(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}next")
        self.assertEqual((head.status, body, rest), (200, b"{}", b"next"))
        raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
        (head, body), rest = drive(_http.read_response(), raw)
        self.assertEqual((body, rest, head.closes), (b"abcde", b"", True))

    def test_nonsense_is_an_error(self) -> None:
        for raw in (b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n"):
            with self.assertRaises(CallFailed):
                drive(_http.read_response(), raw)
        with self.assertRaises(CallFailed):
            drive(_http.read_chunk(), b"zz\r\n")

    def test_envelopes_however_they_are_cut(self) -> None:
        def envelope(flags: int, message: dict[str, Any]) -> bytes:
            body = json.dumps(message).encode()
            return bytes([flags]) + len(body).to_bytes(4, "big") + body

        raw = envelope(0, {"room": "1"}) + envelope(0, {"room": "2"}) + envelope(2, {"error": {"code": "unavailable"}})
        for step in (1, 3, len(raw)):
            envelopes, got, end = _http.Envelopes(), [], None
            for at in range(0, len(raw), step):
                try:
                    got += envelopes.feed(raw[at : at + step])
                except _http.StreamEnd as e:
                    end = e
                    got += e.rest
            self.assertEqual(got, [{"room": "1"}, {"room": "2"}])
            assert end is not None
            self.assertIsInstance(end.error, Unavailable)


if __name__ == "__main__":
    unittest.main()
