"""A decode rank and a prefill rank as SGLang runs them, as far as the control
plane goes, and the memory between them."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from . import bootstrap, dialects
from .dialects import Buffers, Dialect, Metadata, Registration, expect
from .primitives import Frames, number
from .sockets import Endpoint

KV_BASE, AUX_BASE = 0x7F00_0000_0000, 0x5600_0000_0000


class DecodeRank(Endpoint):
    """A decode rank: registers, publishes metadata, aborts. ``memory`` stands for
    what a NIC would write into: two entries (K and V) and one aux buffer, at made-up
    addresses."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], dialect: Dialect, version: str, rank: int = 0, tp: int = 1,
        pages: int = 16, item: int = 2048, rows: int = 16, aux_item: int = 48, instance: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(context, to_prefill=True)
        self.dialect, self.version, self.rank = dialect, version, rank
        self.generation = 0
        self.notified: dict[int, dialects.Notified] = {}  # by room; NIXL
        span = pages * item
        self.buffers = Buffers([KV_BASE, KV_BASE + (1 << 30)], item, pages, [AUX_BASE], aux_item, rows)
        self.memory = {KV_BASE: bytearray(span), KV_BASE + (1 << 30): bytearray(span), AUX_BASE: bytearray(rows * aux_item)}
        key = dialect.key(self.ip, self.port, instance)
        self.registration = Registration(self.ip, self.port, key, self.buffers, rank, tp)

    def register(self, prefill: str) -> None:
        self.send(prefill, self.dialect.registration(self.version, self.registration))

    def metadata(self, room: int, pages: list[int], aux: int | None, **more: int | bool) -> Metadata:
        return Metadata(room, self.ip, self.port, self.registration.key, pages, aux, **more)  # type: ignore[arg-type]

    def publish(self, prefill: str, m: Metadata) -> None:
        self.send(prefill, self.dialect.metadata(self.version, m))

    def abort(self, prefill: str, room: int, version: str = "", generation: int = 0) -> int:
        """Send ABORT in this version's form; gives the generation, also where the
        form has no place for it."""
        self.generation = generation or self.generation + 1
        self.send(prefill, dialects.abort(version or self.version, room, self.ip, self.port, self.generation))
        return self.generation

    def expect_ack(self, room: int, rank: int, generation: int, version: str = "") -> None:
        """The next message is the ACK in the form that was asked."""
        form = version or self.version
        self.expect(dialects.abort_ack("v3" if form == "v3" else "v2", room, rank, generation))

    def succeeded(self, room: int, rank: int) -> None:
        """The room's success is told, as the dialect tells it: by NIXL's notifications,
        which came with the data, else by the next message."""
        if self.dialect.name == "nixl":
            expect(room in self.notified and self.notified[room].done(), f"room {room} is not done by its notifications")
        else:
            self.expect(self.dialect.status(room, dialects.SUCCESS, rank))

    def write(self, address: int, data: bytes) -> None:
        """What the peer's NIC would do."""
        for base, memory in self.memory.items():
            at = address - base
            if 0 <= at and at + len(data) <= len(memory):
                memory[at : at + len(data)] = data
                return
        raise dialects.Failure(f"a write of {len(data)} bytes at {address:#x} hits no buffer")

    def page(self, page: int) -> bytes:
        """K and V of one page."""
        item = self.buffers.kv_item
        return b"".join(bytes(self.memory[p][page * item : (page + 1) * item]) for p in self.buffers.kv_ptrs)

    def row(self, row: int) -> bytes:
        item = self.buffers.aux_item
        return bytes(self.memory[AUX_BASE][row * item : (row + 1) * item])


class PrefillRank(Endpoint):
    """A prefill rank: hears registrations and metadata, reports, acknowledges."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], dialect: Dialect, version: str, rank: int = 0) -> None:
        super().__init__(context, to_prefill=False)
        self.dialect, self.version, self.rank = dialect, version, rank
        self.peers: dict[str, Registration] = {}
        self.registered: Frames = []  # the newest registration
        self.aborts: dict[bytes, Frames] = {}  # newest ABORT heard of each room

    def message(self) -> Frames:
        """The next message that is no repeat: of an ABORT, which has the same bytes, or
        of the registration, which a decode sends again when it is not sure."""
        while True:
            f = self.receive()
            if f == self.registered:
                continue
            if f[0] != b"ABORT" or self.aborts.get(f[1]) is None:
                return f
            expect(f == self.aborts[f[1]], f"ABORT again as {f!r}, before {self.aborts[f[1]]!r}")

    def hear_registration(self) -> tuple[Frames, Registration]:
        """The next message is a registration, in the newest form and nothing more."""
        f = self.message()
        expect(self.dialect.is_registration(f), f"received {f!r}, want a registration")
        want = self.dialect.registration_frames["v3"]
        expect(len(f) == want, f"the registration has {len(f)} frames, want {want}: {f!r}")
        r = self.dialect.read_registration(f)
        self.registered, self.peers[r.key] = f, r
        return f, r

    def hear_metadata(self) -> Metadata:
        """The next message is metadata from a registered peer."""
        f = self.message()
        want = self.dialect.metadata_frames["v3"]
        expect(len(f) == want, f"the metadata has {len(f)} frames, want {want}: {f!r}")
        m = self.dialect.read_metadata(f)
        expect(self.dialect.metadata("v3", m) == f, f"metadata in another spelling: {f!r}")
        peer = self.peers.get(m.key)
        expect(peer is not None and peer.address == m.address, f"metadata of {m.key}, which has not registered")
        return m

    def hear_abort(self, room: int, of: str) -> int:
        """The next message but repeats is ABORT of this room; gives its generation."""
        return self.read_abort(self.message(), room, of)

    def hear_abort_again(self, room: int, of: str) -> int:
        """A repeat of this room's ABORT comes."""
        while True:
            f = self.receive()
            if f[0] == b"ABORT" and f[1] == b"%d" % room:
                return self.read_abort(f, room, of)
            expect(f in (self.registered, self.aborts.get(f[1])), f"received {f!r}, want a repeat")

    def read_abort(self, f: Frames, room: int, of: str) -> int:
        """ABORT in its newest form."""
        ip, _, port = of.rpartition(":")
        expect(len(f) == 5 and f[0] == b"ABORT", f"received {f!r}, want ABORT with a generation")
        generation = number(f[4])
        expect(f == dialects.abort("v3", room, ip, int(port), generation), f"received {f!r}")
        expect(0 < generation < 1 << 63, f"generation {generation}")
        self.aborts[f[1]] = f
        return generation

    def status(self, m: Metadata, status: int, reason: str = "") -> None:
        self.send(m.address, self.dialect.status(m.room, status, self.rank, reason))

    def ack(self, of: str, room: int, generation: int, version: str = "", rank: int | None = None) -> None:
        id = self.rank if rank is None else rank
        self.send(of, dialects.abort_ack(version or self.version, room, id, generation))


def write_pages(
    registration: Registration, pages: list[int] | tuple[int, ...], page_of: Callable[[int], bytes],
    write: Callable[[int, bytes], None],
) -> None:  # fmt: skip
    """One chunk, entry by entry (wire.md 5, equal TP): page p of entry e is at
    ptr[e] + p*item_len. ``page_of(i)`` are the bytes of the chunk's i-th page."""
    item = registration.buffers.kv_item
    for i, page in enumerate(pages):
        data = page_of(i)
        for e, ptr in enumerate(registration.buffers.kv_ptrs):
            write(ptr + page * item, data[e * item : (e + 1) * item])


__all__ = ["DecodeRank", "PrefillRank", "bootstrap", "write_pages"]
