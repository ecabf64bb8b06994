"""An SGLang decode against a pdnode prefill. Each function is one story: it
raises Failure where the node departs from the wire."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from pdlog import EngineWrite, NoticeKind

from . import bootstrap, junk
from .dialects import FAILED, Notified, abort_ack, expect
from .engine import PAGE, ROW, Engine, pattern
from .ranks import DecodeRank, write_pages
from .sockets import until
from .story import Story

UNKNOWN = 999_000  # room numbers from here on are never opened


class DecodeStory(Story):
    """``prefill`` is the node's rank 0; the engine beside it makes the writes."""

    def __init__(self, dialect: str, version: str, ranks: int, socket: str, address: str) -> None:
        super().__init__(dialect, version, ranks)
        self.address = address
        self.engine = Engine(socket)
        topology = bootstrap.topology(address)
        expect(topology["attn_tp_size"] == ranks and topology["page_size"] == 64, f"topology {topology}")
        expect(topology["follow_bootstrap_room"] is True and topology["kv_cache_dtype"] == "auto", f"topology {topology}")
        self.prefill = bootstrap.rank_address(address, 0)
        self.instances = 0
        self.probes = UNKNOWN
        self.by_address: dict[str, DecodeRank] = {}

    def decode(self, rank: int = 0, tp: int = 1, register: bool = True) -> DecodeRank:
        self.instances += 1
        d = DecodeRank(self.context, self.dialect, self.version, rank, tp, item=PAGE // 2, aux_item=ROW, instance=self.instances)
        self.by_address[d.address] = d
        if register:
            d.register(self.prefill)
        return d

    def quiet(self, d: DecodeRank) -> None:
        """Nothing has come to ``d``: what the node sends to one endpoint stays in
        order, and the answer to a new question comes first."""
        self.probes += 1
        g = d.abort(self.prefill, self.probes)
        d.expect_ack(self.probes, 0, g)

    def ready(self, d: DecodeRank, room: int, pages: list[int], aux: int | None = 5, **more: int | bool) -> None:
        """Publish a room and wait until the node's engine may send."""
        self.engine.client.open_send(room)
        d.publish(self.prefill, d.metadata(room, pages, aux, **more))
        self.engine.hear(NoticeKind.READY, room)

    def send(self, room: int, chunk: int, first: int, count: int, last: bool) -> None:
        """Chunks read pages 10, 11 … of the engine's own memory."""
        sources = [10 + first + i for i in range(count)]
        for i, page in enumerate(sources):
            self.engine.fill(room, page, first + i)
        self.engine.memory.aux(3)[:] = pattern(room, -1, ROW)
        self.engine.client.send_chunk(room, chunk, sources, first=first, source_aux=3, last=last)

    def write_of(self, room: int) -> EngineWrite:
        return self.engine.hear(NoticeKind.WRITE, room).write

    def write(self, w: EngineWrite) -> None:
        """Make a write as the engine's library would, from the registration as the
        node hands it on, and say that it is done."""
        destination = self.by_address[w.address]
        frames = list(self.engine.client.destination(w.address))
        sent = self.dialect.registration(self.version, destination.registration)
        expect(frames == sent, f"the registration handed on is {frames!r}, sent was {sent!r}")
        expect(w.session == destination.registration.key, f"session {w.session}")
        read = destination.registration if self.version == "v1" else self.dialect.read_registration(frames)
        source = lambda i: bytes(self.engine.memory.page(w.source_pages[i]))  # noqa: E731
        write_pages(read, w.pages, source, destination.write)
        if w.aux >= 0:
            destination.write(read.buffers.aux_ptrs[0] + w.aux * ROW, bytes(self.engine.memory.aux(w.source_aux)))
        expect(not w.notifications or self.dialect.name == "nixl", f"notifications of another library: {w.notifications}")
        for text in w.notifications:
            room = int(text.partition("_")[0])
            destination.notified.setdefault(room, Notified(1)).take(room, text)
        self.engine.completed(w.token)

    def check(self, d: DecodeRank, room: int, pages: list[int], aux: int) -> None:
        for i, page in enumerate(pages):
            expect(d.page(page) == pattern(room, i, PAGE), f"page {page} of room {room} holds other bytes")
        expect(d.row(aux) == pattern(room, -1, ROW), f"the aux row of room {room} holds other bytes")

    def hear_failed(self, d: DecodeRank, room: int) -> None:
        """The end of a room that no endpoint asked for is told to its endpoints."""
        f = d.receive()
        want = self.dialect.status(room, FAILED, 0, "a reason")
        expect(len(f) == len(want) and f[:3] == want[:3], f"received {f!r}, want Failed of room {room}")

    def finish(self, room: int, outcome: NoticeKind) -> None:
        self.engine.hear(outcome, room)
        self.engine.hear(NoticeKind.SOURCE_RELEASED, room)
        self.engine.client.clear(room)


def transfer(s: DecodeStory) -> None:
    """Registration, metadata, two chunks, one Success, every byte in its place."""
    d = s.decode()
    for room, pages, aux in ((s.base, [2, 3, 9], 5), (s.base + 1, [2, 3, 9], 5), (7, [0], 0)):
        s.ready(d, room, pages, aux)
        if len(pages) > 1:
            s.send(room, 0, 0, len(pages) - 1, False)
            s.write(s.write_of(room))
        s.send(room, min(len(pages) - 1, 1), len(pages) - 1, 1, True)
        w = s.write_of(room)
        s.quiet(d)  # no Success while a write is open
        s.write(w)
        d.succeeded(room, 0)
        s.check(d, room, pages, aux)
        s.finish(room, NoticeKind.SUCCEEDED)


def two_decode_ranks(s: DecodeStory) -> None:
    """Prefill TP 1 serves decode TP 2: it starts when both have published, and
    reports to each; an ABORT of one is answered to that one, then to the other."""
    if s.version == "v1" and s.dialect.name == "mori":
        return  # its shortest metadata has no place for required_dst_info_num
    ranks = [s.decode(i, 2) for i in range(2)]
    room = s.base
    for aborted in (False, True):
        room += 1
        s.engine.client.open_send(room)
        for d in ranks:
            d.publish(s.prefill, d.metadata(room, [4, 5], 1, required=2))
            if d is ranks[0]:
                s.quiet(d)  # it has been read, and one of two is not enough
                expect(not s.engine.heard(NoticeKind.READY, room), "ready with one decode rank of two")
        s.engine.hear(NoticeKind.READY, room)
        s.send(room, 0, 0, 2, True)
        writes = [s.write_of(room), s.write_of(room)]
        expect({w.address for w in writes} == {d.address for d in ranks}, f"writes {writes}")
        if not aborted:
            for w in writes:
                s.write(w)
            for d in ranks:
                d.succeeded(room, 0)
                s.check(d, room, [4, 5], 1)
            s.finish(room, NoticeKind.SUCCEEDED)
            continue
        generations = [d.abort(s.prefill, room) for d in ranks]
        for d, w in zip(ranks, writes, strict=True):
            failed = d.receive() if d is not ranks[0] else None  # the first to abort ends the room: the other is told so
            if failed is not None and failed[0] != b"ABORT_ACK":
                expect(failed[: len(failed) - 1] == s.dialect.status(room, FAILED, 0, "x")[: len(failed) - 1], f"received {failed!r}")
            s.quiet(d)
            s.write(w)
        for d, g in zip(ranks, generations, strict=True):
            d.expect_ack(room, 0, g)
        s.finish(room, NoticeKind.FAILED)


def dummy_and_prefix(s: DecodeStory) -> None:
    """A dummy gets no status and an ACK all the same; a full prefix hit is no
    dummy: its aux row is owed."""
    d = s.decode()
    s.engine.client.open_send(s.base)
    d.publish(s.prefill, d.metadata(s.base, [], None, dummy=True))
    s.engine.hear(NoticeKind.SUCCEEDED, s.base)
    g = d.abort(s.prefill, s.base)
    d.expect_ack(s.base, 0, g)  # first: so no status came before it
    if s.version == "v1" and s.dialect.name == "nixl":
        return  # without frames 9 and 10 no pages is a dummy, by the rule for older peers
    s.ready(d, s.base + 1, [], 6, prefix=64)
    s.send(s.base + 1, 0, 0, 0, True)
    w = s.write_of(s.base + 1)
    expect(w.pages == () and w.aux == 6, f"the write of a full prefix hit is {w}")
    s.write(w)
    d.succeeded(s.base + 1, 0)
    s.check(d, s.base + 1, [], 6)
    s.finish(s.base + 1, NoticeKind.SUCCEEDED)


def abort_waits_for_the_drain(s: DecodeStory) -> None:
    """The ACK comes when the last write has ended, in the form that was asked;
    repeats are answered again, a newer generation replaces an older (F27, F47)."""
    d = s.decode()
    s.ready(d, s.base, [2, 3])
    s.send(s.base, 0, 0, 1, False)
    s.send(s.base, 1, 1, 1, True)
    writes = [s.write_of(s.base), s.write_of(s.base)]
    g = d.abort(s.prefill, s.base)
    until("the room has failed", lambda: s.engine.heard(NoticeKind.FAILED, s.base))
    for w in writes:
        s.quiet(d)
        s.write(w)
    d.expect_ack(s.base, 0, g)
    d.abort(s.prefill, s.base, generation=g)
    d.expect_ack(s.base, 0, g)
    if s.version == "v3":
        d.abort(s.prefill, s.base, generation=g + 100)
        d.expect_ack(s.base, 0, g + 100)
        d.abort(s.prefill, s.base, generation=g)  # lower: stale
        d.generation = g + 100
        s.quiet(d)
    s.finish(s.base, NoticeKind.FAILED)
    g = d.abort(s.prefill, s.base)  # the engine has forgotten it
    d.expect_ack(s.base, 0, g)
    if s.version == "v3":
        d.abort(s.prefill, s.base, generation=g - 1)  # stale still
        s.quiet(d)


def forms_of_abort(s: DecodeStory) -> None:
    """What an ABORT lacks decides how it is answered, never whether the room ends
    (1.4, F38)."""
    d = s.decode()
    ip, port = d.ip.encode(), b"%d" % d.port
    forms: list[tuple[list[bytes], Callable[[int], list[bytes]] | None]] = [
        ([], None),
        ([ip, b"bad"], None),
        ([b"host", port], None),
        ([ip, port], lambda room: abort_ack("v2", room, 0, 0)),
        ([ip, port, b"x7"], lambda room: abort_ack("v2", room, 0, 0)),
        ([ip, port, b"9"], lambda room: abort_ack("v3", room, 0, 9)),
        ([ip, port, b""], lambda room: abort_ack("v2", room, 0, 0)),
    ]
    for i, (rest, answer) in enumerate(forms):
        room = s.base + 10 + i
        s.ready(d, room, [1])
        d.send(s.prefill, [b"ABORT", b"%d" % room, *rest])
        s.finish(room, NoticeKind.FAILED)
        if answer is not None:
            d.expect(answer(room))
        else:
            s.hear_failed(d, room)
        s.quiet(d)
    for bad in (b"4_242", b"+5", b" 5", b"-1", b"", b"\xff", b"9223372036854775808"):
        d.send(s.prefill, [b"ABORT", bad, ip, port, b"1"])
    d.send(s.prefill, [b"ABORT"])
    s.quiet(d)


def lost_ack(s: DecodeStory) -> None:
    """The connection is lost between ABORT and ACK: the repeat is answered (F27)."""
    d = s.decode()
    s.ready(d, s.base, [2, 3])
    s.send(s.base, 0, 0, 2, True)
    w = s.write_of(s.base)
    g = d.abort(s.prefill, s.base)
    until("the room has failed", lambda: s.engine.heard(NoticeKind.FAILED, s.base))
    d.unbind()
    s.write(w)
    s.finish(s.base, NoticeKind.FAILED)
    d.bind(d.port)
    want = abort_ack("v3" if s.version == "v3" else "v2", s.base, 0, g)

    def answered() -> bool:  # a repeat may go the way of the first, into the old connection
        d.abort(s.prefill, s.base, generation=g)
        got = d.poll(1.0)
        expect(got is None or got == want, f"received {got!r}, want {want!r}")
        return got is not None

    until("the repeat is answered", answered)
    while (got := d.poll(1.0)) is not None:
        expect(got == want, f"received {got!r}, want {want!r}")


def strangers(s: DecodeStory) -> None:
    """ABORT and metadata of an endpoint that nobody registered change nothing and
    are not answered there (F42)."""
    d, stranger = s.decode(), s.decode(register=False)
    s.ready(d, s.base, [2])
    stranger.abort(s.prefill, s.base)
    stranger.publish(s.prefill, stranger.metadata(UNKNOWN, [2], 1))
    stranger.abort(s.prefill, UNKNOWN)
    stranger.register(s.prefill)
    s.quiet(stranger)  # so all of it was read, and nothing of it answered
    expect(s.engine.client.room(UNKNOWN).state == "unknown", "a stranger's metadata made a room")
    s.send(s.base, 0, 0, 1, True)
    s.write(s.write_of(s.base))
    d.succeeded(s.base, 0)
    s.finish(s.base, NoticeKind.SUCCEEDED)


def prefill_abort_is_told(s: DecodeStory) -> None:
    """The prefill's own end goes at once to every endpoint that is no dummy (F36);
    the reason travels where the dialect has a place for it."""
    d, other = s.decode(0, 2), s.decode(1, 2)
    ranks = [d] if s.version == "v1" and s.dialect.name == "mori" else [d, other]
    s.engine.client.open_send(s.base)
    for r in ranks:
        r.publish(s.prefill, r.metadata(s.base, [1, 2], 3, required=len(ranks)))
    s.engine.hear(NoticeKind.READY, s.base)
    s.engine.client.abort(s.base, "no memory on prefill")
    for r in ranks:
        r.expect(s.dialect.status(s.base, FAILED, 0, "no memory on prefill"))
        g = r.abort(s.prefill, s.base)  # SGLang aborts every failed request
        r.expect_ack(s.base, 0, g)
        s.quiet(r)  # once
    s.finish(s.base, NoticeKind.FAILED)


def comes_back(s: DecodeStory) -> None:
    """The decode goes away with a write open and comes back at another port as
    another instance; its generations begin again. The old write keeps its source
    pages, the new instance is served."""
    old = s.decode()
    s.ready(old, s.base, [2, 3])
    s.send(s.base, 0, 0, 2, True)
    w = s.write_of(s.base)
    new = s.decode(register=False)  # bound while the old one is: at another port for certain
    old.close()
    new.register(s.prefill)
    s.ready(new, s.base + 1, [2, 3])
    s.send(s.base + 1, 0, 0, 2, True)
    s.write(s.write_of(s.base + 1))
    new.succeeded(s.base + 1, 0)
    s.check(new, s.base + 1, [2, 3], 5)
    s.finish(s.base + 1, NoticeKind.SUCCEEDED)
    s.engine.client.abort(s.base, "its decode is gone")
    s.engine.hear(NoticeKind.FAILED, s.base)
    expect(not s.engine.heard(NoticeKind.SOURCE_RELEASED, s.base), "source pages are free while they are read")
    s.engine.completed(w.token)
    s.engine.hear(NoticeKind.SOURCE_RELEASED, s.base)
    s.quiet(new)


def http(s: DecodeStory) -> None:
    """The bootstrap server as SGLang's decode and its router use it (wire.md 2)."""
    a = s.address
    route = "/route?prefill_dp_rank={}&prefill_cp_rank={}&target_tp_rank={}&target_pp_rank={}"
    bootstrap.text(a, "GET", "/health", 200, "OK")
    bootstrap.text(a, "GET", route.format(0, 0, 7, 0), 404, "Rank not registered.")
    bootstrap.text(a, "GET", "/nothing", 404, "Not found")
    for path in ("/route", "/route?target_tp_rank=0", route.format("a", 0, 0, 0)):
        status, kind, body = bootstrap.ask(a, "GET", path)
        expect(status == 400 and kind == "text/plain; charset=utf-8" and body.startswith(b"Bad request: "), f"{path}: {status} {body!r}")
    status, kind, body = bootstrap.ask(a, "DELETE", "/route")
    expect((status, kind, body) == (405, "application/json", b"Method not allowed"), f"DELETE /route: {status} {kind} {body!r}")
    status, _, body = bootstrap.ask(a, "PUT", "/route", {})
    expect(status == 400 and body.startswith(b"Bad request: "), f"PUT /route: {status} {body!r}")
    bootstrap.text(a, "POST", "/register_dp_rank", 200, "OK", {"bootstrap_room": s.base, "dp_rank": 1})
    status, _, body = bootstrap.ask(a, "POST", "/query_dp_ranks", {"bootstrap_rooms": [s.base, 7]})
    expect(status == 200 and json.loads(body) == {str(s.base): 1}, f"query_dp_ranks: {status} {body!r}")
    status, _, body = bootstrap.ask(a, "GET", "/pdlog/v1/node")
    keys = {"node", "boot", "incarnation", "version", "ranks", "log_since", "log_id", "features"}
    expect(status == 200 and set(json.loads(body)) == keys, f"/pdlog/v1/node: {status} {body!r}")


def many_rooms(s: DecodeStory, rooms: int) -> None:
    """Rooms opened and aborted, in a random order: each ACK comes once its room's
    write has ended, not before, and all source pages come free."""
    d, draw = s.decode(), random.Random(4242)
    generations: dict[int, int] = {}
    writes: dict[int, EngineWrite] = {}
    failed: list[int] = []  # the ABORT is there, the write is open
    drained: set[int] = set()
    acked: set[int] = set()
    released: set[int] = set()
    opened = 0
    while len(released) < rooms:
        while opened < rooms and opened - len(released) < 48:
            opened += 1
            room = s.base + 1000 + opened
            s.engine.client.open_send(room)
            d.publish(s.prefill, d.metadata(room, [opened % 16], opened % 16))
            s.engine.client.send_chunk(room, 0, [opened % 32], first=0, last=True)
        n = s.engine.next(0.005)
        while n is not None:
            if n.kind is NoticeKind.WRITE:
                writes[n.room] = n.write
                generations[n.room] = d.abort(s.prefill, n.room)
            elif n.kind is NoticeKind.FAILED:
                failed.append(n.room)
            elif n.kind is NoticeKind.SOURCE_RELEASED:
                expect(n.room in drained, f"source pages of room {n.room} are free while they are read")
                released.add(n.room)
                s.engine.client.clear(n.room)
            n = s.engine.next(0)
        while (f := d.poll()) is not None:
            room = int(f[1])
            form = "v3" if s.version == "v3" else "v2"
            expect(f == abort_ack(form, room, 0, generations[room]), f"received {f!r}")
            expect(room in drained, f"room {room} is acknowledged with its write open")
            expect(room not in acked, f"room {room} is acknowledged twice")
            acked.add(room)
        draw.shuffle(failed)
        for _ in range(len(failed) // 2 if opened < rooms else len(failed)):
            room = failed.pop()
            drained.add(room)
            s.engine.completed(writes.pop(room).token)
    until("every room is acknowledged", lambda: _all_acked(s, d, acked, rooms))


def _all_acked(s: DecodeStory, d: DecodeRank, acked: set[int], rooms: int) -> bool:
    while (f := d.poll()) is not None:
        acked.add(int(f[1]))
    return len(acked) == rooms


def flood(s: DecodeStory, seconds: float) -> None:
    """Junk on the control port and on the bootstrap port, as fast as it goes; rooms
    are served meanwhile, and every answer is exact."""
    d = s.decode()
    with junk.Flood(s.dialect, s.prefill, s.address, at_prefill=True) as f:
        rooms = 0
        while f.running(seconds):
            rooms += 1
            room = s.base + rooms
            s.ready(d, room, [2, 3])
            s.send(room, 0, 0, 2, True)
            s.write(s.write_of(room))
            d.succeeded(room, 0)
            s.check(d, room, [2, 3], 5)
            s.finish(room, NoticeKind.SUCCEEDED)
            s.quiet(d)
            bootstrap.text(s.address, "GET", "/health", 200, "OK")
    junk.report(f, rooms)
