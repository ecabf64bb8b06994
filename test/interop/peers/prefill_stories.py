"""An SGLang prefill against a pdnode decode. Each function is one story: it
raises Failure where the node departs from the wire."""

from __future__ import annotations

import random
from collections import deque

from pdlog import Incompatible, Notice, NoticeKind, NotReady, WeakPeer
from pdlog.types import Reserved, RoomView

from . import bootstrap, junk
from .dialects import FAILED, SUCCESS, Failure, Metadata, Registration, aux_data, expect, notifications
from .engine import PAGE, PAGES, ROW, Engine, pattern
from .primitives import packed
from .ranks import PrefillRank
from .sockets import until
from .story import Story


class PrefillStory(Story):
    """``prefills`` are the ranks of this side; the node has one rank, at ``decode``."""

    def __init__(self, dialect: str, version: str, ranks: int) -> None:
        super().__init__(dialect, version, ranks)
        self.prefills = [PrefillRank(self.context, self.dialect, version, i) for i in range(ranks)]
        self.server = bootstrap.Server(bootstrap.Topology(tp=ranks))
        self.generation = 0
        self.decode = ""

    def announce(self) -> None:
        """Every rank registers at the bootstrap server."""
        for p in self.prefills:
            self.server.ranks[p.rank] = p.address

    def meet(self, socket: str) -> None:
        """The node is up: give it memory, hear what it registers."""
        self.engine = Engine(socket)
        self.decode = self.engine.client.status().rank_addresses[0]
        for p in self.prefills:
            self.hear_registration(p)
        asked = {target.partition("?")[0] for method, target in self.server.requests}
        expect(asked <= {"/route", "/health", "/pdlog/v1/node"}, f"asked for {asked}")
        until("the node knows the prefill", lambda: len(self.engine.client.peers()) == 1)

    def wait_for_refusal(self, socket: str) -> None:
        """Instead of meet: the node finds the prefill and does not register with it."""
        self.engine = Engine(socket)
        until("the node knows the prefill", lambda: any(p.incompatible for p in self.engine.client.peers()))
        expect(all(p.poll() is None for p in self.prefills), "registered with a prefill that does not fit")

    def hear_registration(self, p: PrefillRank) -> Registration:
        """The registration, frame by frame as the node's memory makes it."""
        f, r = p.hear_registration()
        expect(r.address == self.decode and (r.rank, r.tp) == (0, 1), f"registered {r}")
        expect(r.buffers.kv_item == PAGE and len(r.buffers.kv_ptrs) == 1 and len(r.buffers.aux_ptrs) == 1, f"registered {r}")
        ip, _, port = self.decode.rpartition(":")
        self._check_frames(f, r, ip.encode(), port.encode())
        return r

    def _check_frames(self, f: list[bytes], r: Registration, ip: bytes, port: bytes) -> None:
        key, item, kv, aux = r.key.encode(), b"%d" % PAGE, packed("Q", r.buffers.kv_ptrs), packed("Q", r.buffers.aux_ptrs)
        e, each = b"", packed("Q", [PAGE])
        want = {
            "mooncake": [b"None", ip, port, key, kv, aux, e, b"0", b"1", item, e, e, e, e, e, e, b"1", b"0", e, each],
            "nixl": [b"NixlMsgGuard", b"None", ip, port, key, f[5], kv, aux, e, f[9], b"1", b"0", item, e, e, e, e, b"%d" % PAGES,
                     b"DRAM", each, e, e, b"1", b"0"],
            "mori": [b"MoriMsgGuard", b"None", ip, port, f[4], f[5], f[6], e, f[8], b"1", b"0", item, e, e],
        }[self.dialect.name]  # fmt: skip
        expect(f == want, f"registered with {f!r}, want {want!r}")

    # ---- rooms

    def open(self, room: int, count: int = 2) -> tuple[Reserved, list[Metadata]]:
        """Open a room; each rank hears its metadata, exact in every field."""
        r = self.engine.client.open_receive(room, count=count, prefill=self.server.address)
        heard = []
        for p in self.prefills:
            m = p.hear_metadata()
            want = Metadata(room, p.peers[m.key].ip, p.peers[m.key].port, m.key, list(r.pages), r.aux, 1, 0, False)
            expect(m == want, f"metadata {m}, want {want}")
            heard.append(m)
        return r, heard

    def write(self, p: PrefillRank, m: Metadata, room: int) -> None:
        """This rank's part of every page and, from rank 0, the aux row: what its NIC
        would do, at the addresses that were registered."""
        r = p.peers[m.key]
        share = PAGE // self.ranks
        for i, page in enumerate(m.pages):
            at = page - r.buffers.kv_ptrs[0]  # the node's pool begins at its pointer
            part = slice(p.rank * share, (p.rank + 1) * share)
            self.engine.memory.page(at)[part] = pattern(room, i, PAGE)[part]
        if p.rank == 0 and m.aux is not None:
            if self.dialect.name == "mori":  # its default: the row comes as a message
                p.send(m.address, aux_data(room, 0, m.aux, pattern(room, -1, ROW)))
            else:
                self.engine.memory.aux(m.aux)[:] = pattern(room, -1, ROW)

    def check(self, room: int, r: Reserved) -> None:
        for i, page in enumerate(r.pages):
            expect(bytes(self.engine.memory.page(page)) == pattern(room, i, PAGE), f"page {page} of room {room} holds other bytes")
        expect(bytes(self.engine.memory.aux(r.aux)) == pattern(room, -1, ROW), f"the aux row of room {room} holds other bytes")

    def succeed(self, room: int) -> None:
        """A whole transfer."""
        r, heard = self.open(room)
        for p, m in zip(self.prefills, heard, strict=True):
            self.write(p, m, room)
            expect(not self.engine.heard(NoticeKind.SUCCEEDED, room), f"success before rank {p.rank} has reported")
            if self.dialect.name == "nixl":  # the engine's agent hears it, with the data
                expect(self.engine.client.notify(notifications(room, p.rank, p.rank == 0)) == 0, "a good notification is malformed")
            else:
                p.status(m, SUCCESS)
        self.engine.hear(NoticeKind.SUCCEEDED, room)
        self.check(room, r)
        self.engine.client.finish(room)
        self.released(room, "success")

    def released(self, room: int, basis: str) -> None:
        n = self.engine.hear(NoticeKind.RELEASED, room)
        expect(n.basis == basis and not n.unsafe, f"room {room} is released by {n.basis}, unsafe {n.unsafe}, want {basis}")

    def room(self, room: int) -> RoomView:
        return self.engine.client.room(room)

    def held(self, room: int, pages: tuple[int, ...]) -> None:
        """The room's pages belong to nobody else, and are not free."""
        owned = {p.page: p.room for p in self.engine.client.pages().pages}
        expect(all(owned.get(p) == room for p in pages), f"pages {pages} of room {room} are not held: {owned}")
        expect(not self.engine.heard(NoticeKind.RELEASED, room), f"room {room} is released")

    def hear_aborts(self, room: int) -> int:
        """Every rank hears the ABORT, with one generation, higher than any before."""
        heard = {p.hear_abort(room, self.decode) for p in self.prefills}
        expect(len(heard) == 1, f"generations {heard} in one room")
        (generation,) = heard
        expect(generation > self.generation, f"generation {generation} after {self.generation}")
        self.generation = generation
        return generation

    def ack_all(self, room: int, generation: int, version: str = "") -> None:
        for p in self.prefills:
            p.ack(self.decode, room, generation, version)

    def quarantined(self, room: int) -> None:
        until(f"room {room} is quarantined", lambda: self.room(room).state == "quarantined")


def transfer(s: PrefillStory) -> None:
    """Metadata to each rank, bytes in place, success when every rank has said so."""
    s.succeed(s.base)
    s.succeed(s.base + 1)
    s.succeed(s.base)  # the number again


def abort_is_held_until_each_rank_has_drained(s: PrefillStory) -> None:
    """ABORT with one generation to every rank; the pages come free with the last
    rank's ACK, not before."""
    for room in (s.base, s.base + 1):
        r, _ = s.open(room)
        s.engine.client.abort(room, "client went away")
        s.engine.hear(NoticeKind.FAILED, room)
        generation = s.hear_aborts(room)
        for p in s.prefills:
            s.held(room, r.pages)
            p.ack(s.decode, room, generation)
        s.released(room, "acks")


def failure_is_held_too(s: PrefillStory) -> None:
    """A rank's Failed ends the room; the others may still write: ABORT to all, and
    the pages wait for every ACK (F14)."""
    r, heard = s.open(s.base)
    s.prefills[-1].status(heard[-1], FAILED, "kv chunk send failed")
    n = s.engine.hear(NoticeKind.FAILED, s.base)
    reason = "" if s.dialect.name == "mooncake" else "kv chunk send failed"
    expect(n.cause == "peer_failed" and (not reason or n.reason == reason), f"failed with {n}")
    s.prefills[0].status(heard[0], SUCCESS)  # crosses: changes nothing (F15)
    generation = s.hear_aborts(s.base)
    s.held(s.base, r.pages)
    s.ack_all(s.base, generation)
    s.released(s.base, "acks")


def receipts_prove_nothing(s: PrefillStory) -> None:
    """A prefill that answers with receipts: its pages are quarantined, whatever the
    time; the drain of an ACK that names its rank frees them (F6, F45)."""
    r, _ = s.open(s.base)
    s.engine.client.abort(s.base)
    generation = s.hear_aborts(s.base)
    s.ack_all(s.base, generation, "v1")
    s.quarantined(s.base)
    s.held(s.base, r.pages)
    expect(s.engine.client.peers()[0].weak, "a peer that sent receipts is not reported as weak")
    s.ack_all(s.base, generation, "v2")
    s.released(s.base, "acks")


def weak_peer_is_refused(s: PrefillStory) -> None:
    """The same prefill, and the policy that does not serve it."""
    try:
        s.engine.client.open_receive(s.base, count=1, prefill=s.server.address)
    except WeakPeer:
        pass
    else:
        raise Failure("a weak peer was served under weak_peers: refuse")
    expect(s.engine.client.pages().free == PAGES, "a refused room left pages behind")


def old_ack_and_reuse(s: PrefillStory) -> None:
    """An ACK without a generation is evidence for a room number's first use alone:
    for a later one it may be of the use before (4.4)."""
    s.succeed(s.base)
    r, _ = s.open(s.base)
    s.engine.client.abort(s.base)
    generation = s.hear_aborts(s.base)
    s.ack_all(s.base, generation, "v2")
    s.quarantined(s.base)
    s.held(s.base, r.pages)
    s.ack_all(s.base, generation, "v3")
    s.released(s.base, "acks")


def lost_abort_and_lost_ack(s: PrefillStory) -> None:
    """The connection is lost before the ABORT, then between ABORT and ACK: the ABORT
    comes again, with the same generation, until it is answered (F27)."""
    r, _ = s.open(s.base)
    for p in s.prefills:
        p.unbind()
    s.engine.client.abort(s.base)
    s.engine.hear(NoticeKind.FAILED, s.base)
    for p in s.prefills:
        p.bind(p.port)
    generation = s.hear_aborts(s.base)
    for p in s.prefills:  # it drained, acknowledged, and the ACK was lost
        p.unbind()
        p.bind(p.port)
    for p in s.prefills:
        again = p.hear_abort_again(s.base, s.decode)
        expect(again == generation, f"ABORT again with generation {again}, not {generation}")
    s.held(s.base, r.pages)
    s.ack_all(s.base, generation)
    s.released(s.base, "acks")


def forged_acks(s: PrefillStory) -> None:
    """Only a rank that was published to, with the generation that is armed, in a
    room that is (F10, F18, F40, F42)."""
    r, heard = s.open(s.base)
    p = s.prefills[0]
    s.ack_all(s.base, 1, "v3")  # not armed
    p.ack(s.decode, s.base + 9, 1, "v3")  # no such room
    s.engine.client.abort(s.base)
    generation = s.hear_aborts(s.base)
    for wrong in (generation - 1, generation + 1, 0):
        s.ack_all(s.base, wrong, "v3")
    p.ack(s.decode, s.base, generation, "v3", rank=99)
    for rank, gen in ((b"x", b"%d" % generation), (b"+0", b"%d" % generation), (b"0", b"x"), (b"-1", b"%d" % generation)):
        p.send(s.decode, [b"ABORT_ACK", b"%d" % s.base, rank, gen])
    p.status(heard[0], SUCCESS)  # too late: recorded, changes nothing
    other, _ = s.open(s.base + 1)  # answered behind all that
    s.held(s.base, r.pages)
    state = s.room(s.base + 1).state
    expect(state in ("bootstrapping", "waiting"), f"the other room is {state}")
    s.ack_all(s.base, generation, "v3")
    s.released(s.base, "acks")
    s.ack_all(s.base, generation, "v3")  # late: leaves nothing
    s.engine.client.abort(s.base + 1)
    s.ack_all(s.base + 1, s.hear_aborts(s.base + 1), "v3")
    s.released(s.base + 1, "acks")


def comes_back_as_another_process(s: PrefillStory) -> None:
    """The prefill dies with a room open and comes back at the same bootstrap address
    with another port. The new process is registered with and serves; it knows nothing
    of the old one's writes, so no word of it frees their pages (F12, F35)."""
    r, _ = s.open(s.base)
    port = s.server.port
    s.server.close()
    for p in s.prefills:
        p.close()
    n = s.engine.hear(NoticeKind.FAILED, s.base)
    expect(n.cause == "peer_lost", f"failed with {n}")
    s.prefills = [PrefillRank(s.context, s.dialect, s.version, i) for i in range(s.ranks)]
    s.server = bootstrap.Server(bootstrap.Topology(tp=s.ranks), port)
    s.announce()
    for p in s.prefills:
        s.hear_registration(p)
    generation = s.room(s.base).generation
    s.ack_all(s.base, generation, "v3")
    s.ack_all(s.base, generation, "v2")
    until("the new process is known", lambda: s.engine.client.peers()[0].state == "ok")
    s.succeed(s.base + 1)  # answered behind the ACKs, which are no proof
    s.quarantined(s.base)
    s.held(s.base, r.pages)
    s.succeed(s.base + 2)


def one_missed_heartbeat_is_not_the_end(s: PrefillStory) -> None:
    """One failure is a suspicion; two in a row fail the prefill's rooms and hold
    their pages; heard again it is asked again at once (F35)."""
    r, heard = s.open(s.base)
    p = s.prefills[0]
    s.server.healthy = False
    n = s.engine.hear(NoticeKind.FAILED, s.base)
    expect(n.cause == "peer_lost", f"failed with {n}")
    generation = s.hear_aborts(s.base)
    p.status(heard[0], SUCCESS)
    s.held(s.base, r.pages)
    try:
        s.engine.client.open_receive(s.base + 1, count=1, prefill=s.server.address)
    except NotReady:
        pass
    else:
        raise Failure("a room was opened with a lost peer")
    s.server.healthy = True
    until("the prefill is well again", lambda: s.engine.client.peers()[0].state == "ok")
    expect(p.hear_abort_again(s.base, s.decode) == generation, "asked again with another generation")
    s.ack_all(s.base, generation)
    s.released(s.base, "acks")
    s.succeed(s.base + 1)


def topology_of_another_version(s: PrefillStory) -> None:
    """A newer prefill has more keys, which are ignored (F33)."""
    expect(set(s.server.topology.answer()) > bootstrap.TOPOLOGY_KEYS, "the topology has no key too many")
    s.succeed(s.base)


def other_pages_are_refused(s: PrefillStory) -> None:
    """Layouts that do not fit are refused before anything is reserved."""
    try:
        s.engine.client.open_receive(s.base, count=1, prefill=s.server.address)
    except Incompatible as e:
        expect("page" in e.detail, f"refused with {e.detail}")
    else:
        raise Failure("a prefill with other pages was served")
    expect(s.engine.client.pages().free == PAGES, "a refused room left pages behind")


def many_rooms(s: PrefillStory, rooms: int) -> None:
    """Rooms opened and aborted: each is released after its last rank's ACK, never
    before, and all pages are free at the end."""
    draw, p = random.Random(42), s.prefills[0]
    waiting: deque[tuple[int, int]] = deque()  # ABORTs that are not answered yet
    acked: set[int] = set()
    armed: dict[int, int] = {}
    owner: dict[int, int] = {}  # by page
    released: set[int] = set()
    opened = 0

    def release(n: Notice) -> None:
        expect(n.room in acked or n.basis == "never_published", f"room {n.room} is released before its ACK, by {n.basis}")
        expect(not n.unsafe and n.basis in ("acks", "never_published"), f"room {n.room} is released by {n.basis}")
        expect(n.room not in released, f"room {n.room} is released twice")
        for page in n.pages:
            expect(owner.pop(page) == n.room, f"page {page} was not room {n.room}'s")
        released.add(n.room)

    while len(released) < rooms:
        while opened < rooms and opened - len(released) < 24:
            opened += 1
            room = s.base + 1000 + opened
            r = s.engine.client.open_receive(room, count=2, prefill=s.server.address)
            for page in r.pages:
                if page in owner:  # the node knew of its release before we did
                    release(s.engine.hear(NoticeKind.RELEASED, owner[page]))
                owner[page] = room
            if draw.random() < 0.5:
                s.engine.client.abort(room)
            else:
                waiting.append((room, -1))
        f = p.poll(0.005)
        while f is not None:
            if f[0] == b"ABORT":  # else metadata
                room = int(f[1])
                generation = p.read_abort(f, room, s.decode)
                expect(armed.setdefault(room, generation) == generation, f"room {room} has two generations")
                if room not in acked and (room, generation) not in waiting:
                    waiting.append((room, generation))
            f = p.poll()
        for _ in range(len(waiting) if opened == rooms else draw.randrange(len(waiting) + 1)):
            room, generation = waiting.popleft()
            if generation < 0:
                s.engine.client.abort(room)
            else:
                acked.add(room)
                p.ack(s.decode, room, generation)
        n = s.engine.take()
        while n is not None:
            if n.kind is NoticeKind.RELEASED:
                release(n)
            n = s.engine.take()
    expect(len(set(armed.values())) == len(armed), "two rooms share a generation")
    pages = s.engine.client.pages()
    expect(pages.free == PAGES and pages.held == pages.quarantined == pages.owned == 0, f"pages at the end: {pages}")


def flood(s: PrefillStory, seconds: float) -> None:
    """Junk on the decode's control port; rooms are served meanwhile."""
    with junk.Flood(s.dialect, s.decode, "", at_prefill=False) as f:
        rooms = 0
        while f.running(seconds):
            rooms += 1
            s.succeed(s.base + rooms)
    junk.report(f, rooms)


# How a story's prefill differs from the ordinary one, before the node starts.
TOPOLOGIES = {
    "topology_of_another_version": {"decode_allocation_policy": "early", "a_key_of_next_year": [1]},
    "other_pages_are_refused": {"page_size": 16},
}
