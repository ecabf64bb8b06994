"""The blocking client."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from . import _calls as calls
from . import _http as http
from . import types as t
from .errors import DeadlineExceeded, Unavailable, from_response

T = TypeVar("T")

_READ = 1 << 16


class _Connection:
    """One connection to the node's socket. Not for two threads at once."""

    def __init__(self, path: str, timeout: float | None) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._buffer = bytearray()
        try:
            self._sock.settimeout(timeout)
            self._sock.connect(path)
        except OSError as e:
            self._sock.close()
            raise Unavailable(f"connect to {path}: {e}") from e

    def idle(self) -> bool:
        """The node has neither closed it nor said anything unasked."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | select.POLLHUP)
        return not self._buffer and not poll.poll(0)

    def send(self, data: bytes, deadline: float | None, fd: int | None = None) -> None:
        """Send a request; ``fd`` goes with its first byte."""
        try:
            self._sock.settimeout(_left(deadline))
            if fd is not None:
                data = data[socket.send_fds(self._sock, [data], [fd]) :]
            self._sock.sendall(data)
        except TimeoutError as e:
            raise DeadlineExceeded("no room to send in time") from e
        except OSError as e:
            raise Unavailable(f"send: {e}") from e

    def run(self, reader: Generator[http.Want, bytes, T], deadline: float | None) -> T:
        """Drive a reader to its result."""
        try:
            want = next(reader)
            while True:
                want = reader.send(self._take(want, deadline))
        except StopIteration as end:
            result: T = end.value
            return result

    def _take(self, want: http.Want, deadline: float | None) -> bytes:
        searched = 0
        while True:
            if isinstance(want, int):
                end = want if len(self._buffer) >= want else 0
            else:
                at = self._buffer.find(want, max(searched - len(want), 0))
                end = at + len(want) if at >= 0 else 0
                searched = len(self._buffer)
                if not end and searched > http.MAX_HEAD:
                    raise Unavailable("the answer has no end of line")
            if end:
                data = bytes(self._buffer[:end])
                del self._buffer[:end]
                return data
            try:
                self._sock.settimeout(_left(deadline))
                got = self._sock.recv(_READ)
            except TimeoutError as e:
                raise DeadlineExceeded("no answer in time") from e
            except OSError as e:
                raise Unavailable(f"receive: {e}") from e
            if not got:
                raise http.cut_off()
            self._buffer += got

    def shut(self) -> None:
        """End it from another thread: its reads return."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self._sock.close()


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("the call's time is over")
    return left


class Watch(Iterator[t.Notice]):
    """A stream of notices. It begins with the rooms that the node still holds
    (``resumed``), then ``CAUGHT_UP``. Iterate in one thread; ``close`` may be
    called from any and ends the iteration. A node that ends raises Unavailable.
    """

    def __init__(self, connection: _Connection, timeout: float | None, after_seq: int = 0) -> None:
        self._connection = connection
        self._envelopes = http.Envelopes()
        self._ready: deque[dict[str, Any]] = deque()
        self._end: http.StreamEnd | None = None
        self._closed = False
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            connection.send(http.request(calls.SERVICE + "Watch", calls.watch(after_seq), None, stream=True), deadline)
            head = connection.run(http.read_head(), deadline)
            if head.status != 200 or not head.chunked:
                raise from_response(head.status, connection.run(_body(head), deadline))
        except BaseException:
            connection.close()
            raise

    def __next__(self) -> t.Notice:
        while not self._ready:
            if self._closed:
                self._connection.close()
                raise StopIteration
            if self._end is not None:
                self._connection.close()
                if self._end.error is not None:
                    raise self._end.error
                raise StopIteration
            try:
                chunk = self._connection.run(http.read_chunk(), None)
                if not chunk:
                    raise http.cut_off()
                self._ready.extend(self._envelopes.feed(chunk))
            except http.StreamEnd as end:
                self._end = end
                self._ready.extend(end.rest)
            except Unavailable:
                if not self._closed:
                    self._connection.close()
                    raise
        return t.load(t.Notice, self._ready.popleft())

    def close(self) -> None:
        self._closed = True
        self._connection.shut()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._connection.close()


def _body(head: http.Head) -> Generator[http.Want, bytes, bytes]:
    return (yield head.length) if head.length else b""


class Client:
    """A client of the node whose engine API is on the unix socket ``path``.

    Every call takes at most ``timeout`` seconds (None: no limit). All methods
    may be called from several threads at once; each call has a connection of
    its own for as long as it takes, and idle ones are kept. Nothing is sent
    twice: what failed with Unavailable is for the caller to judge.
    """

    def __init__(self, path: str, timeout: float | None = 10.0) -> None:
        self.path = path
        self.timeout = timeout
        self._mu = threading.Lock()
        self._idle: list[_Connection] = []
        self._closed = False

    def close(self) -> None:
        with self._mu:
            self._closed = True
            idle, self._idle = self._idle, []
        for c in idle:
            c.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- memory

    def register_memory(
        self,
        rank: int,
        path: str,
        page_bytes: int,
        pages: int,
        aux_bytes: int,
        aux_rows: int,
        offset: int = 0,
        aux_offset: int = 0,
        fd: int | None = None,
    ) -> bool:
        """Give the node the memory of a local rank, a file that it maps: pages
        first, then aux rows. True when every local rank has its memory. With
        ``fd`` the file's descriptor goes with the call, and the node needs no
        right to open ``path``."""
        call = calls.register_memory(
            rank, path, page_bytes, pages, aux_bytes, aux_rows, offset, aux_offset, fd is not None
        )
        return self._do(call, fd).ready

    # ---- decode

    def open_receive(
        self,
        room: int,
        pages: Sequence[int] | None = None,
        count: int = 0,
        aux: int | None = None,
        prefill: str = "",
        pairs: Sequence[t.Pair] = (),
        reserve_only: bool = False,
        request_id: str = "",
        trace_id: str = "",
        timeout: float | None = None,
    ) -> t.Reserved:
        """Reserve pages (these, or ``count`` free ones) for a room and publish
        them to the prefill node. A room without its outcome after ``timeout``
        seconds is aborted; the limit survives a restart of the node. Raises
        PagesBusy, RoomLive, WeakPeer, Incompatible, NotReady, LimitReached."""
        return self._do(
            calls.open_receive(room, pages, count, aux, prefill, pairs, reserve_only, request_id, trace_id, timeout)
        )

    def publish(self, room: int) -> int:
        """Publish a room that was opened with ``reserve_only``."""
        return self._do(calls.publish(room)).room_seq

    def finish(self, room: int) -> int:
        """The engine is done with the pages of a succeeded room."""
        return self._do(calls.finish(room)).room_seq

    def report_page(self, room: int, page: int, to: str, detail: str = "") -> int:
        """Record that bytes of a page on local rank ``to`` are wrong."""
        return self._do(calls.report_page(room, page, to, detail)).room_seq

    # ---- prefill

    def open_send(
        self,
        room: int,
        ranks: Sequence[int] = (),
        request_id: str = "",
        trace_id: str = "",
        timeout: float | None = None,
    ) -> int:
        """The engine has the request; READY is told when metadata is complete.
        ``ranks`` are the local ranks that will send; the room has not succeeded
        before each of them is done. None: not said."""
        return self._do(calls.open_send(room, ranks, request_id, trace_id, timeout)).room_seq

    def send_chunk(
        self,
        room: int,
        chunk: int,
        source_pages: Sequence[int],
        first: int | None = None,
        pages: Sequence[int] | None = None,
        rank: int = 0,
        source_aux: int = 0,
        last: bool = False,
        to: Sequence[str] = (),
        after: Sequence[t.Point] = (),
    ) -> int:
        """Hand over one chunk of computed pages. Its destination is given by
        position in the room's page list (``first``) or by number (``pages``).
        The source pages are read until SOURCE_RELEASED. It leaves when every
        point of ``after`` was signalled; chunks of a rank leave in order."""
        call = calls.send_chunk(room, chunk, source_pages, first, pages, rank, source_aux, last, to, after)
        return self._do(call).room_seq

    def signal(self, points: Sequence[t.Point]) -> int:
        """Move timelines: chunks that waited for them leave. Gives how many."""
        return self._do(calls.signal(points)).released

    def clear(self, room: int) -> int:
        """The engine forgets the room."""
        return self._do(calls.clear(room)).room_seq

    def write_done(self, token: int, outcome: t.WriteOutcome, reason: str = "") -> None:
        """Say how a write of a WRITE notice ended (``rdma.engine_writes``)."""
        self._do(calls.write_done(token, outcome, reason))

    def notify(self, notifications: Iterable[bytes], rank: int = 0) -> int:
        """Hand over what the transfer agent of a decode rank was told in-band
        (NIXL's notifications), in its order. Returns how many were malformed."""
        return self._do(calls.notify(notifications, rank)).malformed

    def destination(self, address: str) -> tuple[bytes, ...]:
        """The frames with which the decode rank at ``address`` registered."""
        return self._do(calls.destination(address)).frames

    # ---- both

    def abort(self, room: int, reason: str = "") -> int:
        """Abort a room. Its pages are free at RELEASED, not before."""
        return self._do(calls.abort(room, reason)).room_seq

    def watch(self, after_seq: int = 0) -> Watch:
        """Stream what the node tells its engine, on a connection of its own.
        ``after_seq`` is the ``seq`` of the last notice that was dealt with:
        releases after it are told again."""
        return Watch(_Connection(self.path, self.timeout), self.timeout, after_seq)

    def acknowledge(self, seq: int) -> None:
        """Every notice up to ``seq`` was dealt with: a stream that gives no
        ``after_seq`` is told of the releases after it."""
        self._do(calls.acknowledge(seq))

    def poll(self, rooms: Sequence[int]) -> tuple[t.RoomState, ...]:
        """How rooms do, many in one call, in the order asked for."""
        return self._do(calls.poll(rooms)).rooms

    # ---- views

    def status(self) -> t.Status:
        return self._do(calls.status())

    def rooms(self, limit: int = 0) -> tuple[t.RoomView, ...]:
        """The rooms the node holds; 0 = at most 1000."""
        return self._do(calls.rooms(limit)).rooms

    def room(self, room: int) -> t.RoomView:
        """The newest incarnation of a room number; state "unknown": never used."""
        return self._do(calls.room(room)).rooms[0]

    def peers(self) -> tuple[t.PeerView, ...]:
        return self._do(calls.peers()).peers

    def pages(self, every: bool = False) -> t.Pages:
        """The pool: counts, and the pages that are not free (or every one)."""
        return self._do(calls.pages(every))

    def _do(self, call: calls.Call[T], fd: int | None = None) -> T:
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        connection = self._connection()
        keep = False
        try:
            connection.send(http.request(call.path, call.request, self.timeout), deadline, fd)
            head, body = connection.run(http.read_response(), deadline)
            keep = not head.closes
        finally:
            self._give_back(connection, keep)
        if head.status != 200:
            raise from_response(head.status, body)
        return t.load(call.answer, json.loads(body))

    def _connection(self) -> _Connection:
        while True:
            with self._mu:
                if self._closed:
                    raise Unavailable("the client is closed")
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return _Connection(self.path, self.timeout)
            if connection.idle():
                return connection
            connection.close()

    def _give_back(self, connection: _Connection, keep: bool) -> None:
        with self._mu:
            if keep and not self._closed:
                self._idle.append(connection)
                return
        connection.close()
