"""The messages of the three dialects, in each version that is in the field.

Written from wire.md, sections 1.2 to 1.8, alone. A version is that of the peer
which the Python side plays:

* ``v1``: the oldest forms: registration and metadata with their required frames
  alone; ABORT without a generation; as prefill it answers with receipts.
* ``v2``: the forms of source [A]; an ACK has the rank and no generation.
* ``v3``: the newest; ABORT and ACK carry the generation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .primitives import EMPTY, Frames, dec, lists, msgpack, number, packed, unmsgpack, unpacked

VERSIONS = ("v1", "v2", "v3")
SUCCESS, FAILED = 4, 0  # KVPoll, wire.md 3.1


@dataclass
class Buffers:
    """A decode rank's registered memory: entries of the KV pool, aux buffers."""

    kv_ptrs: list[int]
    kv_item: int  # bytes of one page in one entry
    pages: int
    aux_ptrs: list[int]
    aux_item: int = 0
    aux_rows: int = 0


@dataclass
class Registration:
    """What a decode rank says of itself."""

    ip: str
    port: int
    key: str  # session id, agent name, engine key
    buffers: Buffers
    rank: int = 0
    tp: int = 1

    @property
    def address(self) -> str:
        return f"{self.ip}:{self.port}"


@dataclass
class Metadata:
    """Where the pages of one room are on one decode rank."""

    room: int
    ip: str
    port: int
    key: str
    pages: list[int] = field(default_factory=list)
    aux: int | None = None
    required: int = 1
    prefix: int = 0
    dummy: bool = False

    @property
    def address(self) -> str:
        return f"{self.ip}:{self.port}"


def abort(version: str, room: int, ip: str, port: int, generation: int) -> Frames:
    """ABORT (1.4)."""
    frames = [b"ABORT", dec(room), ip.encode(), dec(port)]
    return frames + [dec(generation)] if version == "v3" else frames


def abort_ack(version: str, room: int, rank: int, generation: int) -> Frames:
    """ABORT_ACK (1.5): a receipt, a drain, a drain of this very arming."""
    frames = [b"ABORT_ACK", dec(room)]
    if version != "v1":
        frames.append(dec(rank))
    if version == "v3":
        frames.append(dec(generation))
    return frames


def aux_data(room: int, buffer: int, row: int, data: bytes) -> Frames:
    """AUX_DATA (1.8)."""
    return [b"AUX_DATA", dec(room), dec(buffer), dec(row), len(data).to_bytes(4, "big"), data]


class Mooncake:
    name = "mooncake"
    registration_frames = {"v1": 10, "v2": 19, "v3": 20}
    metadata_frames = {"v1": 8, "v2": 10, "v3": 10}

    def key(self, ip: str, port: int, instance: int) -> str:
        return f"{ip}:{17000 + instance}"  # host:rpc_port of the transfer engine

    def registration(self, version: str, r: Registration) -> Frames:
        b = r.buffers
        frames = [
            b"None", r.ip.encode(), dec(r.port), r.key.encode(), packed("Q", b.kv_ptrs), packed("Q", b.aux_ptrs),
            EMPTY, dec(r.rank), dec(r.tp), dec(b.kv_item), EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, b"1", b"0",
            EMPTY, packed("Q", [b.kv_item] * len(b.kv_ptrs)),
        ]  # fmt: skip
        return frames[: self.registration_frames[version]]

    def read_registration(self, f: Frames) -> Registration:
        expect(f[0] == b"None", f"frame 0 of a registration is {f[0]!r}")
        int(f[3].decode("ascii").rpartition(":")[2])  # P shards by it
        buffers = Buffers(unpacked("Q", f[4]), number(f[9]), 0, unpacked("Q", f[5]))
        return Registration(f[1].decode("ascii"), number(f[2]), f[3].decode("ascii"), buffers, number(f[7]), number(f[8]))

    def metadata(self, version: str, m: Metadata) -> Frames:
        pages, aux = (EMPTY, EMPTY) if m.dummy else (packed("i", m.pages), dec(m.aux or 0))
        frames = [
            dec(m.room), m.ip.encode(), dec(m.port), m.key.encode(), pages, aux, EMPTY, dec(m.required), dec(m.prefix), EMPTY,
        ]  # fmt: skip
        return frames[: self.metadata_frames[version]]

    def read_metadata(self, f: Frames) -> Metadata:
        m = Metadata(number(f[0]), f[1].decode("ascii"), number(f[2]), f[3].decode("ascii"), unpacked("i", f[4]))
        m.aux, m.required, m.prefix = (number(f[5]) if f[5] else None), number(f[7]), number(f[8])
        m.dummy = not f[4] and not f[5]
        return m

    def is_registration(self, f: Frames) -> bool:
        return f[0] == b"None"

    def status(self, room: int, status: int, rank: int, reason: str = "") -> Frames:
        return [dec(room), dec(status), dec(rank)]  # exactly three; the reason is not sent (1.6)


class Nixl:
    name = "nixl"
    guard = b"NixlMsgGuard"
    registration_frames = {"v1": 13, "v2": 24, "v3": 24}
    metadata_frames = {"v1": 8, "v2": 11, "v3": 11}

    def key(self, ip: str, port: int, instance: int) -> str:
        return f"0f8fad5b-d9cb-469f-a165-{port:06d}{instance:06d}"

    def registration(self, version: str, r: Registration) -> Frames:
        b = r.buffers
        kinds = ",".join(["DRAM"] * len(b.kv_ptrs)).encode()
        frames = [
            self.guard, b"None", r.ip.encode(), dec(r.port), r.key.encode(), b"nixlSerDes|" + r.key.encode(),
            packed("Q", b.kv_ptrs), packed("Q", b.aux_ptrs), EMPTY, b"0", dec(r.tp), dec(r.rank), dec(b.kv_item), EMPTY, EMPTY,
            EMPTY, EMPTY, dec(b.pages), kinds, packed("Q", [b.kv_item] * len(b.kv_ptrs)), EMPTY, EMPTY, b"1", b"0",
        ]  # fmt: skip
        return frames[: self.registration_frames[version]]

    def read_registration(self, f: Frames) -> Registration:
        expect(f[:2] == [self.guard, b"None"], f"a registration begins {f[:2]!r}")
        expect(bool(f[5]), "the agent's metadata is empty")
        buffers = Buffers(unpacked("Q", f[6]), number(f[12]), 0, unpacked("Q", f[7]))
        return Registration(f[2].decode("ascii"), number(f[3]), f[4].decode("ascii"), buffers, number(f[11]), number(f[10]))

    def metadata(self, version: str, m: Metadata) -> Frames:
        pages = EMPTY if m.dummy else packed("i", m.pages)
        frames = [
            self.guard, dec(m.room), m.ip.encode(), dec(m.port), m.key.encode(), pages, dec(m.aux or 0), dec(m.required),
            EMPTY, dec(m.prefix), b"1" if m.dummy else b"0",
        ]  # fmt: skip
        return frames[: self.metadata_frames[version]]

    def read_metadata(self, f: Frames) -> Metadata:
        m = Metadata(number(f[1]), f[2].decode("ascii"), number(f[3]), f[4].decode("ascii"), unpacked("i", f[5]))
        m.aux, m.required, m.prefix, m.dummy = number(f[6]), number(f[7]), number(f[9]), f[10] == b"1"
        return m

    def is_registration(self, f: Frames) -> bool:
        return f[:2] == [self.guard, b"None"]

    def status(self, room: int, status: int, rank: int, reason: str = "") -> Frames:
        return [b"KV_STATUS", dec(room), dec(status), dec(rank), reason.encode()]


class Mori:
    name = "mori"
    guard = b"MoriMsgGuard"
    registration_frames = {"v1": 12, "v2": 14, "v3": 14}
    metadata_frames = {"v1": 7, "v2": 10, "v3": 10}

    def key(self, ip: str, port: int, instance: int) -> str:
        return f"io-decode-dp0-tp0-pid{instance + 77}-{ip}-{port:08x}"

    def registration(self, version: str, r: Registration) -> Frames:
        b = r.buffers
        engine = msgpack([r.key, "node", "host", r.ip, r.port, 77])
        kv = [self._memory(r.key, i, p, b.kv_item * b.pages) for i, p in enumerate(b.kv_ptrs)]
        aux = [self._memory(r.key, 100 + i, p, b.aux_item * b.aux_rows) for i, p in enumerate(b.aux_ptrs)]
        frames = [
            self.guard, b"None", r.ip.encode(), dec(r.port), engine, msgpack(kv), msgpack(aux), EMPTY, b"0", dec(r.tp),
            dec(r.rank), dec(b.kv_item), EMPTY, EMPTY,
        ]  # fmt: skip
        return frames[: self.registration_frames[version]]

    @staticmethod
    def _memory(key: str, number: int, data: int, size: int) -> bytes:
        return msgpack([key, number, -1, "", data, size, 1, bytes(64), -1, 0, bytes(64), -1, "", 0, 0])

    def read_registration(self, f: Frames) -> Registration:
        expect(f[:2] == [self.guard, b"None"], f"a registration begins {f[:2]!r}")
        engine = unmsgpack(f[4])
        expect(len(engine) == 6, f"an engine descriptor has {len(engine)} elements")
        kv, aux = self._memories(f[5]), self._memories(f[6])
        expect(all(m[0] == engine[0] and len(m) == 15 for m in kv + aux), "a memory descriptor is not the engine's, or not of 15")
        buffers = Buffers([m[4] for m in kv], number(f[11]), 0, [m[4] for m in aux])
        return Registration(f[2].decode("ascii"), number(f[3]), engine[0], buffers, number(f[10]), number(f[9]))

    @staticmethod
    def _memories(frame: bytes) -> list[Any]:
        return [unmsgpack(m) for m in unmsgpack(frame)] if frame else []

    def metadata(self, version: str, m: Metadata) -> Frames:
        pages = EMPTY if m.dummy else packed("i", m.pages)
        aux = EMPTY if m.dummy or m.aux is None else dec(m.aux)
        frames = [
            self.guard, dec(m.room), m.ip.encode(), dec(m.port), m.key.encode(), pages, aux, EMPTY, dec(m.required),
            dec(m.prefix) if m.prefix else EMPTY,
        ]  # fmt: skip
        return frames[: self.metadata_frames[version]]

    def read_metadata(self, f: Frames) -> Metadata:
        m = Metadata(number(f[1]), f[2].decode("ascii"), number(f[3]), f[4].decode("ascii"), unpacked("i", f[5]))
        m.aux, m.required, m.prefix = (number(f[6]) if f[6] else None), number(f[8]), (number(f[9]) if f[9] else 0)
        m.dummy = not f[5] and m.aux is None and m.prefix == 0
        return m

    def is_registration(self, f: Frames) -> bool:
        return f[:2] == [self.guard, b"None"]

    def status(self, room: int, status: int, rank: int, reason: str = "") -> Frames:
        return [self.guard, dec(room), dec(status), dec(rank), reason.encode()]


class Notified:
    """What NIXL's notifications have said of one room: its only word of success
    (1.10). ``sources`` owe it their chunks."""

    def __init__(self, sources: int) -> None:
        self.chunks: dict[int, set[int]] = {s: set() for s in range(sources)}
        self.expected: dict[int, int] = {}
        self.aux = False

    def take(self, room: int, text: str) -> None:
        words = text.split("_", 8)
        expect(words[0] == str(room), f"notification {text!r} of room {room}")
        if words[1:] == ["aux"]:
            self.aux = True
        elif words[1:3] == ["aux", "nokv"]:
            self.aux = True
            self.expected[int(words[3])] = int(words[4])
        else:
            expect(len(words) == 5 and words[1] == "kv" and words[3] in ("0", "1"), f"notification {text!r}")
            chunk, last, source = int(words[2]), words[3] == "1", int(words[4])
            expect(chunk not in self.chunks[source], f"chunk {chunk} of source {source} is told twice")
            self.chunks[source].add(chunk)
            if last:
                self.expected[source] = chunk + 1

    def done(self) -> bool:
        return self.aux and all(self.expected.get(s) == len(c) and c == set(range(len(c))) for s, c in self.chunks.items())


def notifications(room: int, source: int, aux: bool) -> list[bytes]:
    """What a source tells of a transfer in one chunk."""
    return [b"%d_kv_0_1_%d" % (room, source)] + ([b"%d_aux" % room] if aux else [])


Dialect = Mooncake | Nixl | Mori
DIALECTS: dict[str, Dialect] = {d.name: d for d in (Mooncake(), Nixl(), Mori())}


class Failure(AssertionError):
    """The node did not do what the wire says."""


def expect(holds: bool, what: str) -> None:
    """An assertion that ``python -O`` does not take away."""
    if not holds:
        raise Failure(what)
