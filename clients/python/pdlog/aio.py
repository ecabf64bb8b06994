"""The asyncio client."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from typing import Any, TypeVar

from . import _calls as calls
from . import _http as http
from . import types as t
from .client import Client
from .errors import DeadlineExceeded, Unavailable, from_response

T = TypeVar("T")


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, path: str) -> _Connection:
        try:
            return cls(*await asyncio.open_unix_connection(path, limit=http.MAX_HEAD))
        except OSError as e:
            raise Unavailable(f"connect to {path}: {e}") from e

    def idle(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    async def send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as e:
            raise Unavailable(f"send: {e}") from e

    async def run(self, reader: Generator[http.Want, bytes, T]) -> T:
        try:
            want = next(reader)
            while True:
                try:
                    if isinstance(want, int):
                        data = await self._reader.readexactly(want)
                    else:
                        data = await self._reader.readuntil(want)
                except (OSError, asyncio.IncompleteReadError) as e:
                    raise http.cut_off() from e
                except asyncio.LimitOverrunError as e:
                    raise Unavailable("the answer has no end of line") from e
                want = reader.send(data)
        except StopIteration as end:
            result: T = end.value
            return result

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass


class AsyncWatch(AsyncIterator[t.Notice]):
    """A stream of notices, as ``Watch``; use it as an async context manager."""

    def __init__(self, path: str, timeout: float | None, after_seq: int = 0) -> None:
        self._path = path
        self._timeout = timeout
        self._after_seq = after_seq
        self._connection: _Connection | None = None
        self._envelopes = http.Envelopes()
        self._ready: deque[dict[str, Any]] = deque()
        self._end: http.StreamEnd | None = None

    async def __aenter__(self) -> AsyncWatch:
        connection = await _Connection.open(self._path)
        try:
            await connection.send(http.request(calls.SERVICE + "Watch", calls.watch(self._after_seq), None, stream=True))
            head = await _within(connection.run(http.read_head()), self._timeout)
            if head.status != 200 or not head.chunked:
                raise from_response(head.status, b"")
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def __anext__(self) -> t.Notice:
        if self._connection is None:
            raise RuntimeError("use `async with client.watch() as notices`")
        while not self._ready:
            if self._end is not None:
                if self._end.error is not None:
                    raise self._end.error
                raise StopAsyncIteration
            try:
                chunk = await self._connection.run(http.read_chunk())
                if not chunk:
                    raise http.cut_off()
                self._ready.extend(self._envelopes.feed(chunk))
            except http.StreamEnd as end:
                self._end = end
                self._ready.extend(end.rest)
        return t.load(t.Notice, self._ready.popleft())


async def _within(work: Any, timeout: float | None) -> Any:
    try:
        return await asyncio.wait_for(work, timeout)
    except asyncio.TimeoutError as e:
        raise DeadlineExceeded("no answer in time") from e


class AsyncClient:
    """As ``Client``, for asyncio: the same calls, arguments and exceptions.

    Belongs to one event loop.
    """

    def __init__(self, path: str, timeout: float | None = 10.0) -> None:
        self.path = path
        self.timeout = timeout
        self._idle: list[_Connection] = []
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for c in idle:
            await c.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def register_memory(
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
        if fd is not None:  # asyncio has no way to send a descriptor
            with Client(self.path, self.timeout) as client:
                return await asyncio.to_thread(
                    client.register_memory, rank, path, page_bytes, pages, aux_bytes, aux_rows, offset, aux_offset, fd
                )
        call = calls.register_memory(rank, path, page_bytes, pages, aux_bytes, aux_rows, offset, aux_offset, False)
        return (await self._do(call)).ready

    async def open_receive(
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
        return await self._do(
            calls.open_receive(room, pages, count, aux, prefill, pairs, reserve_only, request_id, trace_id, timeout)
        )

    async def publish(self, room: int) -> int:
        return (await self._do(calls.publish(room))).room_seq

    async def finish(self, room: int) -> int:
        return (await self._do(calls.finish(room))).room_seq

    async def report_page(self, room: int, page: int, to: str, detail: str = "") -> int:
        return (await self._do(calls.report_page(room, page, to, detail))).room_seq

    async def open_send(
        self,
        room: int,
        ranks: Sequence[int] = (),
        request_id: str = "",
        trace_id: str = "",
        timeout: float | None = None,
    ) -> int:
        return (await self._do(calls.open_send(room, ranks, request_id, trace_id, timeout))).room_seq

    async def send_chunk(
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
        call = calls.send_chunk(room, chunk, source_pages, first, pages, rank, source_aux, last, to, after)
        return (await self._do(call)).room_seq

    async def clear(self, room: int) -> int:
        return (await self._do(calls.clear(room))).room_seq

    async def write_done(self, token: int, outcome: t.WriteOutcome, reason: str = "") -> None:
        await self._do(calls.write_done(token, outcome, reason))

    async def notify(self, notifications: Iterable[bytes], rank: int = 0) -> int:
        return (await self._do(calls.notify(notifications, rank))).malformed

    async def destination(self, address: str) -> tuple[bytes, ...]:
        return (await self._do(calls.destination(address))).frames

    async def abort(self, room: int, reason: str = "") -> int:
        return (await self._do(calls.abort(room, reason))).room_seq

    def watch(self, after_seq: int = 0) -> AsyncWatch:
        return AsyncWatch(self.path, self.timeout, after_seq)

    async def acknowledge(self, seq: int) -> None:
        await self._do(calls.acknowledge(seq))

    async def poll(self, rooms: Sequence[int]) -> tuple[t.RoomState, ...]:
        return (await self._do(calls.poll(rooms))).rooms

    async def signal(self, points: Sequence[t.Point]) -> int:
        return (await self._do(calls.signal(points))).released

    async def status(self) -> t.Status:
        return await self._do(calls.status())

    async def rooms(self, limit: int = 0) -> tuple[t.RoomView, ...]:
        return (await self._do(calls.rooms(limit))).rooms

    async def room(self, room: int) -> t.RoomView:
        return (await self._do(calls.room(room))).rooms[0]

    async def peers(self) -> tuple[t.PeerView, ...]:
        return (await self._do(calls.peers())).peers

    async def pages(self, every: bool = False) -> t.Pages:
        return await self._do(calls.pages(every))

    async def _do(self, call: calls.Call[T]) -> T:
        result: T = await _within(self._exchange(call), self.timeout)
        return result

    async def _exchange(self, call: calls.Call[T]) -> T:
        if self._closed:
            raise Unavailable("the client is closed")
        connection = None
        while self._idle and connection is None:
            kept = self._idle.pop()
            if kept.idle():
                connection = kept
            else:
                await kept.close()
        connection = connection or await _Connection.open(self.path)
        keep = False
        try:
            await connection.send(http.request(call.path, call.request, self.timeout))
            head, body = await connection.run(http.read_response())
            keep = not head.closes and not self._closed
        finally:
            if keep:
                self._idle.append(connection)
            else:
                await connection.close()
        if head.status != 200:
            raise from_response(head.status, body)
        return t.load(call.answer, json.loads(body))
