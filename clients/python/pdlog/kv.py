"""Classes in the shape of SGLang's KVManager, KVSender and KVReceiver.

A transfer backend for SGLang can be written on them in one file; see
docs/engines.md. ``poll`` reads what the node has told and costs no call.

One thing is new against the shape: a room that failed still owns its pages.
``KVReceiver.pages_free`` (or ``KVManager.on_released``) says when the engine
may give them to another request; ``KVSender.source_free`` says the same of the
pages that are read. Giving them back earlier is what corrupts answers.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from .client import Client, Watch
from .errors import PdlogError, Refused
from .types import Notice, NoticeKind


class KVPoll(enum.IntEnum):
    """SGLang's values."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


class KVTransferError(Exception):
    """A room failed."""

    def __init__(self, bootstrap_room: int, failure_reason: str) -> None:
        super().__init__(f"room {bootstrap_room}: {failure_reason}")
        self.bootstrap_room = bootstrap_room
        self.failure_reason = failure_reason


class Memory(Protocol):
    """What a rank's memory has to be able to: see ``SharedMemory``."""

    def register(self, client: Client, rank: int = 0) -> bool: ...


class _Room:
    """What was told of one room incarnation."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.ready: set[str] = set()
        self.outcome: bool | None = None
        self.reason = ""
        self.released = False
        self.basis = ""
        self.unsafe = False
        self.source_free = False
        self.attached = False
        self.cleared = False

    @property
    def free(self) -> bool:
        """Nothing of it is written or read any more."""
        return self.released or self.source_free

    def fail(self, reason: str) -> None:
        if self.outcome is None:  # the first outcome stands
            self.outcome, self.reason = False, reason

    def take(self, n: Notice) -> None:
        self.room = n.room
        if n.kind is NoticeKind.READY:
            self.ready.add(n.who)
        elif n.kind is NoticeKind.SUCCEEDED:
            if self.outcome is None:
                self.outcome = True
        elif n.kind in (NoticeKind.FAILED, NoticeKind.HELD):
            self.fail(": ".join(w for w in (n.cause, n.reason) if w) or "failed")
        elif n.kind is NoticeKind.RELEASED:
            self.released, self.basis, self.unsafe = True, n.basis, n.unsafe
        elif n.kind is NoticeKind.SOURCE_RELEASED:
            self.source_free = True

    def gone(self) -> None:
        """The node came back and holds it no more: it was released."""
        self.fail("the node no longer holds the room")
        self.released = self.source_free = True


_KEPT = 4096  # rooms that were told of and that nobody has asked for yet
_RETRY = (0.05, 1.0)  # seconds: first and longest rest between two tries to watch
_PEERS = 0.5  # seconds that an answer about peers is good for


class KVManager:
    """One engine process's end of its node: memory, watching, rooms.

    ``memories`` are those of the local ranks, in order. They are registered,
    and registered again when the node has restarted, by a thread that also
    hears the notices. ``on_released(room, room_seq)`` is called from it when a
    room's pages are free (decode), or are read no more (prefill).
    """

    def __init__(
        self,
        socket: str,
        memories: Sequence[Memory],
        on_released: Callable[[int, int], None] | None = None,
        timeout: float = 10.0,
    ) -> None:
        self.client = Client(socket, timeout)
        self._memories = list(memories)
        self._on_released = on_released
        self._changed = threading.Condition()
        self._rooms: OrderedDict[int, _Room] = OrderedDict()
        self._live = False
        self._closed = threading.Event()
        self._watch: Watch | None = None
        self._peers: tuple[float, frozenset[str]] = (float("-inf"), frozenset())
        self.error: PdlogError | None = None  # why the node is not heard now
        self._thread = threading.Thread(target=self._listen, name="pdlog-watch", daemon=True)
        self._thread.start()

    @property
    def ranks(self) -> int:
        return len(self._memories)

    def wait_live(self, timeout: float | None = None) -> bool:
        """Wait until the node has the memory and is heard."""
        with self._changed:
            return self._changed.wait_for(lambda: self._live or self._closed.is_set(), timeout) and self._live

    @property
    def live(self) -> bool:
        return self._live

    def knows(self, prefill: str) -> bool:
        """The node has found that prefill node (by name or bootstrap address;
        "" = any)."""
        at, names = self._peers
        if time.monotonic() - at > _PEERS:
            try:
                peers = [p for p in self.client.peers() if p.state == "ok" and p.ranks]
            except PdlogError:
                return False
            names = frozenset(n for p in peers for n in (p.node, p.bootstrap, "") if n or len(peers) == 1)
            self._peers = (time.monotonic(), names)
        return prefill in names

    def close(self) -> None:
        self._closed.set()
        with self._changed:
            watch = self._watch
            self._changed.notify_all()
        if watch is not None:
            watch.close()
        self._thread.join()
        self.client.close()

    def __enter__(self) -> KVManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- rooms

    def _attach(self, room: int, room_seq: int) -> _Room:
        with self._changed:
            r = self._rooms.get(room_seq)
            if r is None:
                r = self._rooms[room_seq] = _Room(room)
            r.attached = True
            return r

    def _cleared(self, room_seq: int, r: _Room) -> None:
        with self._changed:
            r.cleared = True
            self._drop(room_seq, r)

    def _drop(self, room_seq: int, r: _Room) -> None:
        """Let go of a room that nobody waits for; the lock is held."""
        if r.cleared and r.free:
            self._rooms.pop(room_seq, None)

    def _wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(done, timeout)

    def _listen(self) -> None:
        rest = _RETRY[0]
        while not self._closed.is_set():
            try:
                for rank, memory in enumerate(self._memories):
                    memory.register(self.client, rank)
                rest = _RETRY[0]
                self._hear()
                self.error = None
            except PdlogError as e:
                self.error = e
            with self._changed:
                self._live, self._watch = False, None
            self._closed.wait(rest)
            rest = min(2 * rest, _RETRY[1])

    def _hear(self) -> None:
        with self._changed:
            unseen = set(self._rooms)  # before the call: what is opened during it is not of the past
        past = True
        with self.client.watch() as watch:
            with self._changed:
                self._watch = watch
            if self._closed.is_set():
                return
            for n in watch:
                if n.kind is NoticeKind.CAUGHT_UP:
                    past = False
                    self._caught_up(unseen)
                elif n.room_seq:
                    if past:
                        unseen.discard(n.room_seq)
                    self._apply(n)

    def _apply(self, n: Notice) -> None:
        with self._changed:
            r = self._rooms.get(n.room_seq)
            if r is None:
                r = self._rooms[n.room_seq] = _Room(n.room)
                self._trim()
            before = r.free
            r.take(n)
            released = r.free and not before
            self._drop(n.room_seq, r)
            self._changed.notify_all()
        if released and self._on_released is not None:
            self._on_released(n.room, n.room_seq)

    def _caught_up(self, unseen: set[int]) -> None:
        freed: list[tuple[int, int]] = []
        with self._changed:
            for seq in unseen:
                r = self._rooms.get(seq)
                if r is not None:
                    if not r.free:
                        freed.append((r.room, seq))
                    r.gone()
                    self._drop(seq, r)
            self._live, self.error = True, None
            self._changed.notify_all()
        if self._on_released is not None:
            for room, seq in freed:
                self._on_released(room, seq)

    def _trim(self) -> None:
        if len(self._rooms) <= 2 * _KEPT:
            return
        loose = [seq for seq, r in self._rooms.items() if not r.attached]
        for seq in loose[: max(len(loose) - _KEPT, 0)]:
            del self._rooms[seq]


class _End:
    """What a sender and a receiver have in common."""

    def __init__(self, mgr: KVManager, bootstrap_room: int) -> None:
        self.mgr = mgr
        self.bootstrap_room = bootstrap_room
        self.room_seq = 0
        self._room: _Room | None = None
        self._refused = ""

    def _failed(self) -> bool:
        return bool(self._refused) or (self._room is not None and self._room.outcome is False)

    def _succeeded(self) -> bool:
        return self._room is not None and self._room.outcome is True

    def failure_exception(self) -> None:
        """Raise why the room failed."""
        reason = self._refused or (self._room.reason if self._room is not None else "")
        raise KVTransferError(self.bootstrap_room, reason or "unknown")

    def abort(self, reason: str = "aborted by the engine") -> None:
        """Abort the room. What it still owns is free when the node says so."""
        if self._room is None:
            self._refused = self._refused or reason
            return
        try:
            self.mgr.client.abort(self.bootstrap_room, reason)
        except Refused:
            pass  # it has ended

    def wait(self, timeout: float | None = None) -> KVPoll:
        """Wait for the outcome; gives what ``poll`` gives then."""
        self.mgr._wait(lambda: self._failed() or self._succeeded(), timeout)
        return self.poll()

    def poll(self) -> KVPoll:
        raise NotImplementedError


class KVSender(_End):
    """The prefill side of a room."""

    def __init__(
        self,
        mgr: KVManager,
        bootstrap_addr: str,
        bootstrap_room: int,
        request_id: str = "",
        trace_id: str = "",
    ) -> None:
        super().__init__(mgr, bootstrap_room)
        self.bootstrap_addr = bootstrap_addr
        self._total: int | None = None
        self._sent = 0
        self._chunk = 0
        self._aux = 0
        try:
            self.room_seq = mgr.client.open_send(bootstrap_room, range(mgr.ranks), request_id, trace_id)
        except Refused as e:
            self._refused = str(e)
            return
        self._room = mgr._attach(bootstrap_room, self.room_seq)

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        """How many pages will be sent in all, and the local aux row."""
        self._total, self._aux = num_kv_indices, aux_index or 0

    def send(self, kv_indices: Sequence[int]) -> None:
        """Hand over the next pages, from every local rank. They may be sent
        before the room's metadata is there; with the last of them goes the aux
        row."""
        if self._total is None:
            raise RuntimeError("init first")
        pages = list(kv_indices)
        if self._sent + len(pages) > self._total:
            raise ValueError(f"{self._sent} + {len(pages)} pages sent, {self._total} announced")
        if self._failed() or self._succeeded():
            return
        last = self._sent + len(pages) == self._total
        try:
            for rank in range(self.mgr.ranks):
                self.mgr.client.send_chunk(
                    self.bootstrap_room,
                    self._chunk,
                    pages,
                    first=self._sent,
                    rank=rank,
                    source_aux=self._aux,
                    last=last,
                )
        except Refused as e:
            if not self._failed():
                self._refused = str(e)
            return
        self._sent += len(pages)
        self._chunk += 1

    def poll(self) -> KVPoll:
        if self._failed():
            return KVPoll.Failed
        if self._succeeded():
            return KVPoll.Success
        room = self._room
        if room is None or not ("" in room.ready or len(room.ready) >= self.mgr.ranks):
            return KVPoll.Bootstrapping
        return KVPoll.Transferring if self._chunk else KVPoll.WaitingForInput

    @property
    def source_free(self) -> bool:
        """The source pages are read no more."""
        return self._room is None or self._room.source_free or (self._chunk == 0 and self._failed())

    def wait_source_free(self, timeout: float | None = None) -> bool:
        return self.mgr._wait(lambda: self.source_free, timeout)

    def clear(self) -> None:
        """The engine forgets the room; one that has not ended is aborted."""
        if self._room is None:
            return
        if not (self._failed() or self._succeeded()):
            self.abort("cleared before its end")
        try:
            self.mgr.client.clear(self.bootstrap_room)
        except Refused:
            pass
        self.mgr._cleared(self.room_seq, self._room)


class KVReceiver(_End):
    """The decode side of a room.

    ``bootstrap_addr`` is the prefill's bootstrap address or its node name.
    """

    def __init__(
        self,
        mgr: KVManager,
        bootstrap_addr: str,
        bootstrap_room: int,
        request_id: str = "",
        trace_id: str = "",
    ) -> None:
        super().__init__(mgr, bootstrap_room)
        self.bootstrap_addr = bootstrap_addr
        self._request_id, self._trace_id = request_id, trace_id
        self.pages: tuple[int, ...] = ()
        self.aux_index: int | None = None

    def init(self, prefill_dp_rank: int | None = None) -> None:
        """SGLang's hook; the node finds the prefill's ranks by itself."""

    def send_metadata(
        self,
        kv_indices: Sequence[int],
        aux_index: int | None = None,
        state_indices: Sequence[int] | None = None,
        decode_prefix_len: int | None = None,
    ) -> None:
        """Publish the pages to receive into. A refusal makes the room Failed;
        nothing is held then."""
        if state_indices:
            raise ValueError("state pools are not part of the engine API")
        if decode_prefix_len:
            raise ValueError("a decode prefix is not part of the engine API: the prefill has to send every page")
        try:
            got = self.mgr.client.open_receive(
                self.bootstrap_room,
                pages=list(kv_indices),
                aux=aux_index,
                prefill=self.bootstrap_addr,
                request_id=self._request_id,
                trace_id=self._trace_id,
            )
        except Refused as e:
            self._refused = str(e)
            return
        self.room_seq, self.pages, self.aux_index = got.room_seq, got.pages, got.aux
        self._room = self.mgr._attach(self.bootstrap_room, got.room_seq)

    def poll(self) -> KVPoll:
        if self._failed():
            return KVPoll.Failed
        if self._succeeded():
            return KVPoll.Success
        if self._room is not None:
            return KVPoll.Transferring
        if self.mgr.live and self.mgr.knows(self.bootstrap_addr):
            return KVPoll.WaitingForInput
        return KVPoll.Bootstrapping

    @property
    def pages_free(self) -> bool:
        """The pages may be given to another request."""
        return self._room is None or self._room.released

    @property
    def basis(self) -> str:
        """What the release rests on; "" before it."""
        return self._room.basis if self._room is not None else ""

    def wait_pages_free(self, timeout: float | None = None) -> bool:
        return self.mgr._wait(lambda: self.pages_free, timeout)

    def clear(self) -> None:
        """The engine is done with the room: one that succeeded is finished, one
        that has not ended is aborted."""
        if self._room is None:
            return
        try:
            if self._succeeded():
                self.mgr.client.finish(self.bootstrap_room)
            elif not self._failed():
                self.abort("cleared before its end")
        except Refused:
            pass
        self.mgr._cleared(self.room_seq, self._room)
