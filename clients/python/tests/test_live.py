"""Against two real nodes; client_test.go starts them and names their sockets."""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
import unittest
from collections.abc import Callable, Iterable
from typing import Any

from pdlog import (
    AsyncClient,
    BadRequest,
    Client,
    DeadlineExceeded,
    Notice,
    NoticeKind,
    PagesBusy,
    Point,
    Poll,
    RoomLive,
    SharedMemory,
    Unavailable,
)
from pdlog.kv import KVManager, KVPoll, KVReceiver, KVSender, KVTransferError

PREFILL = os.environ.get("PDLOG_PREFILL_SOCKET", "")
DECODE = os.environ.get("PDLOG_DECODE_SOCKET", "")
PAGE, POOL = 4096, 16
PATIENCE = 30.0
BIG = (1 << 63) - 12345  # a room number that no float holds


@unittest.skipUnless(PREFILL and DECODE, "needs two nodes: PDLOG_PREFILL_SOCKET, PDLOG_DECODE_SOCKET")
class Live(unittest.TestCase):
    def setUp(self) -> None:
        self.p, self.d = Client(PREFILL, PATIENCE), Client(DECODE, PATIENCE)
        self.pm, self.dm = SharedMemory(POOL, PAGE), SharedMemory(POOL, PAGE)
        self.assertTrue(self.pm.register(self.p))
        self.assertTrue(self.dm.register(self.d))
        end = time.monotonic() + PATIENCE
        while not any(p.state == "ok" and p.ranks for p in self.d.peers()):
            self.assertLess(time.monotonic(), end, "the prefill node was not found")
            time.sleep(0.01)

    def tearDown(self) -> None:
        ends: tuple[Client | SharedMemory, ...] = (self.p, self.d, self.pm, self.dm)
        for c in ends:
            c.close()

    def test_a_room_number_above_what_floats_hold(self) -> None:
        with self.d.watch() as notices:
            self.until(notices, NoticeKind.CAUGHT_UP)
            opened = self.d.open_receive(BIG, pages=[3, 4], request_id="big")
            self.assertEqual(self.d.room(BIG).room_seq, opened.room_seq)
            self.assertIn(BIG, [r.room for r in self.d.rooms()])
            self.assertEqual(self.d.pages().owned, 2)
            with self.assertRaises(RoomLive) as live:
                self.d.open_receive(BIG, pages=[5])
            self.assertEqual(live.exception.word, "room_live")
            with self.assertRaises(PagesBusy):
                self.d.open_receive(BIG + 1, pages=[4])
            self.d.abort(BIG, "test")
            self.assertEqual(self.until(notices, NoticeKind.FAILED, BIG).cause, "client")
            released = self.until(notices, NoticeKind.RELEASED, BIG)
            self.assertEqual((released.pages, released.unsafe), ((3, 4), False))
        self.assertEqual(self.d.pages().free, POOL)

    def test_refusals_of_the_wrong_side(self) -> None:
        calls: tuple[Callable[[], Any], ...] = (lambda: self.d.open_receive(1 << 63, count=1), lambda: self.p.open_send(1 << 63))
        for call in calls:
            with self.assertRaises(BadRequest):
                call()
        with self.assertRaises(BadRequest):
            self.p.open_receive(1, count=1)
        with self.assertRaises(BadRequest):
            self.d.send_chunk(1, 0, [1], first=0)
        with self.assertRaises(BadRequest):
            self.d.register_memory(9, self.dm.path, PAGE, POOL, 64, 64)

    def test_a_watch_ends_when_another_thread_closes_it(self) -> None:
        watch = self.d.watch()
        self.until(watch, NoticeKind.CAUGHT_UP)
        rest: list[object] = []
        reader = threading.Thread(target=lambda: rest.extend(watch))
        reader.start()
        watch.close()
        reader.join(PATIENCE)
        self.assertFalse(reader.is_alive())
        self.assertEqual(rest, [])

    def test_nobody_there_and_too_late(self) -> None:
        with self.assertRaises(Unavailable):
            Client(DECODE + ".none").status()
        with self.assertRaises((DeadlineExceeded, Unavailable)):
            Client(DECODE, timeout=0.0).status()

    def test_chunks_wait_and_rooms_are_polled(self) -> None:
        self.assertIs(self.d.poll([5101])[0].poll, Poll.UNKNOWN)
        self.pm.page(0)[:] = b"\x33" * PAGE
        with self.p.watch() as from_p, self.d.watch() as from_d:
            self.d.open_receive(5101, pages=[9], timeout=PATIENCE)
            self.p.open_send(5101, timeout=PATIENCE)
            self.until(from_p, NoticeKind.READY, 5101)
            self.assertIs(self.p.poll([5101])[0].poll, Poll.WAITING_FOR_INPUT)
            self.p.send_chunk(5101, 0, [0], first=0, last=True, after=[Point(77, 1)])
            self.assertEqual(self.p.room(5101).waiting_chunks, 1)
            self.assertEqual(self.p.signal([Point(77, 1)]), 1)
            self.until(from_d, NoticeKind.SUCCEEDED, 5101)
            self.assertEqual([s.poll for s in self.d.poll([5101, 5199])], [Poll.SUCCESS, Poll.UNKNOWN])
            self.d.finish(5101)
            seq = self.until(from_d, NoticeKind.RELEASED, 5101).seq
            self.assertTrue(self.d.poll([5101])[0].pages_free)
            self.p.clear(5101)
        with self.d.watch(after_seq=seq - 1) as again:
            self.assertTrue(self.until(again, NoticeKind.RELEASED, 5101).resumed)
        self.d.acknowledge(seq)
        with self.d.watch() as again:
            seen = []
            for n in again:
                if n.kind is NoticeKind.CAUGHT_UP:
                    break
                seen.append(n.room)
            self.assertNotIn(5101, seen)

    def test_a_failure_is_raised_with_its_reason_on_both_sides(self) -> None:
        with KVManager(DECODE, [self.dm]) as d, KVManager(PREFILL, [self.pm]) as p:
            self.assertTrue(d.wait_live(PATIENCE) and p.wait_live(PATIENCE))
            receiver, sender = KVReceiver(d, "", 5104), KVSender(p, "", 5104)
            end = time.monotonic() + PATIENCE
            while receiver.poll() is not KVPoll.WaitingForInput:
                self.assertLess(time.monotonic(), end, "the prefill node was not found")
                time.sleep(0.01)
            receiver.init()
            receiver.send_metadata([1])
            sender.init(1, 0)
            receiver.abort("the client went away")
            for side in (receiver, sender):
                self.assertIs(side.wait(PATIENCE), KVPoll.Failed)
                with self.assertRaises(KVTransferError) as raised:
                    side.failure_exception()
                self.assertEqual(raised.exception.bootstrap_room, 5104)
            with self.assertRaisesRegex(KVTransferError, "the client went away"):
                receiver.failure_exception()
            receiver.clear()
            sender.clear()
            self.assertTrue(receiver.wait_pages_free(PATIENCE) and sender.wait_source_free(PATIENCE))

    def test_a_request_has_its_own_limit(self) -> None:
        with self.p.watch() as notices:
            self.p.open_send(5102, timeout=0.02)
            self.assertEqual(self.until(notices, NoticeKind.FAILED, 5102).cause, "request_timeout")
            self.p.clear(5102)

    def test_asyncio_sends_a_room_and_hears_of_it(self) -> None:
        asyncio.run(asyncio.wait_for(self.room_by_asyncio(), PATIENCE))

    async def room_by_asyncio(self) -> None:
        async with AsyncClient(PREFILL) as p, AsyncClient(DECODE) as d:
            self.pm.page(0)[:] = b"\x5a" * PAGE
            async with p.watch() as from_p, d.watch() as from_d:
                await d.open_receive(5001, pages=[7])
                await p.open_send(5001)
                async for n in from_p:
                    if n.kind is NoticeKind.READY and n.room == 5001:
                        break
                await p.send_chunk(5001, 0, [0], first=0, last=True)
                async for n in from_d:
                    if n.room == 5001 and n.kind in (NoticeKind.SUCCEEDED, NoticeKind.FAILED):
                        break
                self.assertIs(n.kind, NoticeKind.SUCCEEDED)
                self.assertEqual(bytes(self.dm.page(7)), b"\x5a" * PAGE)
                await d.finish(5001)
                async for n in from_d:
                    if n.room == 5001 and n.kind is NoticeKind.RELEASED:
                        break
                self.assertEqual(n.basis, "success")
                await p.clear(5001)
            states = await asyncio.gather(*(d.room(5001) for _ in range(20)))
            self.assertEqual({s.basis for s in states}, {"success"})
            with self.assertRaises(PagesBusy):
                await d.open_receive(5002, count=POOL + 1)

    def test_round_trip(self) -> None:
        took = []
        for _ in range(300):
            began = time.perf_counter()
            self.d.room(1)
            took.append(time.perf_counter() - began)
        print(f"round trip: p50 {statistics.median(took) * 1e6:.0f} us of {len(took)}")
        self.assertEqual(len(self.d._idle), 1, "one connection serves calls that follow each other")

    def until(self, notices: Iterable[Notice], kind: NoticeKind, room: int = 0) -> Notice:
        for n in notices:
            if n.kind is kind and n.room == room:
                return n
        self.fail(f"the stream ended before {kind} of room {room}")


if __name__ == "__main__":
    unittest.main()
