#!/usr/bin/env python3
"""Reads a pdlog log from its files, as docs/log-format.md says.

Prints one JSON object per event, then one that describes the log. Needs
python3-protobuf alone: the schema is in the log.
"""
import json
import os
import re
import struct
import sys

from google.protobuf import descriptor_pb2, descriptor_pool

try:
    from google.protobuf.message_factory import GetMessageClass
except ImportError:  # protobuf 3
    from google.protobuf.message_factory import MessageFactory

    def GetMessageClass(descriptor):
        return MessageFactory().GetPrototype(descriptor)


class Damaged(Exception):
    pass


def check(ok, what):
    if not ok:
        raise Damaged(what)


TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def crc32c(data):
    c = 0xFFFFFFFF
    for b in data:
        c = c >> 8 ^ TABLE[(c ^ b) & 0xFF]
    return c ^ 0xFFFFFFFF


def fnv1a(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


class Bolt:
    """The pairs of the top-level buckets of a bbolt file."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        metas = []
        for off in [0] + [1024 << i for i in range(7)]:
            meta = self.data[off + 16:off + 80]
            if len(meta) < 64:
                continue
            magic, version, size, _, root, _, _, high, txid, total = struct.unpack("<IIIIQQQQQQ", meta)
            if magic != 0xED0CDAED or version != 2 or total != fnv1a(meta[:56]) or off not in (0, size):
                continue
            metas.append((txid, size, root, high))
        check(metas, "no valid meta page in " + path)
        self.metas = sorted(metas, reverse=True)
        self.take(0)

    def take(self, i):
        """Reads from the newest root (0), or from the one before (1)."""
        self.txid, self.size, self.root, self.high = self.metas[i]

    def has_older(self):
        return len(self.metas) > 1 and self.metas[0][0] == self.metas[1][0] + 1

    def page(self, num):
        check(2 <= num < self.high, "page %d of %d" % (num, self.high))
        off = num * self.size
        have, _, _, overflow = struct.unpack_from("<QHHI", self.data, off)
        check(have == num, "page %d says it is %d" % (num, have))
        return self.data[off:off + (overflow + 1) * self.size]

    def walk(self, page, depth=0):
        check(depth < 32, "tree is too deep")
        _, flags, count, _ = struct.unpack_from("<QHHI", page, 0)
        for i in range(count):
            at = 16 + 16 * i
            if flags == 1:
                _, _, child = struct.unpack_from("<IIQ", page, at)
                yield from self.walk(self.page(child), depth + 1)
            elif flags == 2:
                kind, pos, ksize, vsize = struct.unpack_from("<IIII", page, at)
                k = at + pos
                check(k + ksize + vsize <= len(page), "element outside of its page")
                yield kind, page[k:k + ksize], page[k + ksize:k + ksize + vsize]
            else:
                raise Damaged("page flags %d" % flags)

    def bucket(self, name):
        for kind, key, value in self.walk(self.page(self.root)):
            if kind & 1 and key == name:
                root, _ = struct.unpack_from("<QQ", value, 0)
                top = self.page(root) if root else value[16:]
                return ((k, v) for _, k, v in self.walk(top))
        raise Damaged("no bucket " + name.decode())


def uvarint(data, at):
    value = shift = 0
    while True:
        check(at < len(data) and shift < 64, "varint")
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


class Log:
    def __init__(self, directory):
        self.dir = directory
        self.seq = self.chain = self.hlc = None
        self.node = self.id = self.first = None
        names = sorted(n for n in os.listdir(directory) if re.fullmatch(r"\d{20}\.db", n))
        check(names, "no log in " + directory)
        self.segments = names
        self.head = self.read_head()
        self.head_chain = None

    def read_head(self):
        try:
            with open(os.path.join(self.dir, "head"), "rb") as f:
                b = f.read()
        except FileNotFoundError:
            return None
        if len(b) != 20 or b[:4] not in (b"PDH1", b"PDHC"):
            return None
        seq, chain, total = struct.unpack("<QII", b[4:])
        return (seq, chain, b[:4] == b"PDHC") if crc32c(b[:16]) == total else None

    def newest_snapshot(self):
        """The sequence of the newest snapshot that reads well, else 0."""
        for name in sorted((n for n in os.listdir(self.dir) if re.fullmatch(r"\d{20}\.snap", n)), reverse=True):
            with open(os.path.join(self.dir, name), "rb") as f:
                b = f.read()
            if len(b) >= 28 and b[:4] == b"PDS1":
                seq, _, n = struct.unpack_from("<QIQ", b, 4)
                if seq == int(name[:20]) and len(b) == 28 + n and crc32c(b[:-4]) == struct.unpack("<I", b[-4:])[0]:
                    return seq
        return 0

    def state(self):
        return self.seq, self.chain, self.hlc, self.head_chain, self.first, self.node, self.id

    def restore(self, state):
        self.seq, self.chain, self.hlc, self.head_chain, self.first, self.node, self.id = state

    def walk(self, db, i, name):
        """Reads a segment to its end and goes back; gives where it ended and its tip."""
        before = self.state()
        try:
            for _ in self.segment(db, i, name):
                pass
            return self.seq, self.tip
        finally:
            self.restore(before)

    def choose(self, db, i, name):
        """Takes the root before the newest, if that is a commit that a power loss tore."""
        try:
            self.walk(db, i, name)
        except (Damaged, struct.error, KeyError):
            if not db.has_older():
                return
            db.take(1)
            try:
                end, tip = self.walk(db, i, name)
                known = max(self.head[0] if self.head else 0, self.newest_snapshot())
                torn = tip is not None and tip[4] & 1 and not self.sealed and end >= known
            except (Damaged, struct.error, KeyError):
                torn = False
            if not torn:
                db.take(0)

    def events(self):
        for i, name in enumerate(self.segments):
            db = Bolt(os.path.join(self.dir, name))
            if i == len(self.segments) - 1 and not (self.head and self.head[2]):
                self.choose(db, i, name)
            yield from self.segment(db, i, name)
        if self.head:
            check(self.head[0] <= self.seq, "head says %d, the log ends at %d" % (self.head[0], self.seq))
            check(self.head_chain in (None, self.head[1]), "head has another chain")

    def check_tip(self, db, name):
        tip = dict(db.bucket(b"tip"))[b"tip"]
        check(len(tip) == 36 and crc32c(tip[:32]) == struct.unpack(">I", tip[32:])[0], "checksum of the tip of " + name)
        self.tip = struct.unpack(">QQIQI", tip[:32])
        check(self.tip[0] == db.txid, "root of transaction %d under the meta page of %d" % (self.tip[0], db.txid))
        check(self.tip[1:3] == (self.seq, self.chain), "the tip says %d, the frames end at %d" % (self.tip[1], self.seq))

    def segment(self, db, i, name):
        meta = dict(db.bucket(b"meta"))
        version, = struct.unpack(">I", meta[b"format"])
        check(version in (1, 2), "unknown format")
        keys = (b"format", b"node", b"log_id", b"first_seq", b"chain_start", b"boot", b"incarnation", b"descriptor")
        if version > 1 or set(meta) - {b"last_seq", b"chain_head"} != set(keys):
            total = crc32c(b"".join(struct.pack(">I", len(meta[k])) + meta[k] for k in keys))
            check(struct.unpack(">I", meta[b"crc"])[0] == total, "checksum of meta of " + name)
        first, = struct.unpack(">Q", meta[b"first_seq"])
        start, = struct.unpack(">I", meta[b"chain_start"])
        check(first == int(name[:20]), "name and first_seq differ")
        if i == 0:
            self.first, self.seq, self.chain, self.hlc = first, first - 1, start, 0
            self.node, self.id = meta[b"node"].decode(), meta[b"log_id"].hex()
            self.message = self.schema(meta[b"descriptor"])
        check((self.node, self.id) == (meta[b"node"].decode(), meta[b"log_id"].hex()), "another log")
        check((self.seq + 1, self.chain) == (first, start), "segment %d does not continue the log" % first)
        for key, frame in db.bucket(b"frames"):
            yield from self.frame(struct.unpack(">Q", key)[0], frame)
        self.tip = None
        if version > 1:
            self.check_tip(db, name)
        self.sealed = b"last_seq" in meta
        if self.sealed:
            last, = struct.unpack(">Q", meta[b"last_seq"])
            head, = struct.unpack(">I", meta[b"chain_head"])
            check((self.seq, self.chain) == (last, head), "the seal says %d" % last)
        else:
            check(i == len(self.segments) - 1, "segment %d is not sealed" % first)

    def schema(self, raw):
        pool = descriptor_pool.DescriptorPool()
        files = descriptor_pb2.FileDescriptorSet.FromString(raw)
        for f in files.file:
            pool.Add(f)
        return GetMessageClass(pool.FindMessageTypeByName("pdlog.events.v1.Event"))

    def frame(self, key, b):
        version, kind, count, n, first, hlc, boot, incarnation, chain = struct.unpack_from("<BBHIQQQQI", b, 0)
        check((version, kind) == (1, 1), "unknown frame version")
        check(len(b) == 44 + n + 4 and count > 0, "length of frame %d" % first)
        check(crc32c(b[:-4]) == struct.unpack_from("<I", b, 44 + n)[0], "checksum of frame %d" % first)
        check(key == first == self.seq + 1, "frame %d after %d" % (first, self.seq))
        check(chain == self.chain, "chain broken at %d" % first)
        check(hlc > self.hlc, "clock at %d" % first)
        at = 44
        for i in range(count):
            size, at = uvarint(b, at)
            delta, at = uvarint(b, at)
            check(at + size <= 44 + n and (delta == 0) == (i == 0), "record %d" % (first + i))
            body = b[at:at + size]
            at += size
            hlc += delta
            e = self.message.FromString(body)
            e.seq, e.hlc, e.node = first + i, hlc, self.node
            e.boot, e.incarnation, e.prev_hash = boot, incarnation, self.chain
            self.chain = crc32c(struct.pack("<IQQ", self.chain, first + i, hlc) + body)
            self.seq, self.hlc = first + i, hlc
            if self.head and self.head[0] == self.seq:
                self.head_chain = self.chain
            yield e
        check(at == 44 + n, "bytes are left in frame %d" % first)


def main():
    log = Log(sys.argv[1])
    for e in log.events():
        # The whole event in its deterministic bytes, so that a comparison misses nothing.
        print(json.dumps({
            "seq": e.seq, "hlc": e.hlc, "boot": e.boot, "room": e.room, "prev_hash": e.prev_hash,
            "type": e.WhichOneof("payload"), "bytes": e.SerializeToString(deterministic=True).hex(),
        }))
    print(json.dumps({"node": log.node, "log_id": log.id, "first_seq": log.first, "last_seq": log.seq, "chain": log.chain}))


if __name__ == "__main__":
    try:
        main()
    except (Damaged, struct.error, KeyError) as err:
        sys.exit("damaged: %s" % (err,))
