"""Two engine processes that exchange real pages through two pdnodes.

    python3 examples/pages.py --prefill p.sock --decode d.sock

starts a prefill and a decode engine (stand-ins: "computing" a page means to
fill it with a pattern of its room and position). They serve rooms one after
the other; every third one is aborted by decode while its second half is not
sent yet. Pages of an aborted room are reused by the next room as soon as the
node says that they are free, and every byte of every page that arrives is
checked. Prints a JSON summary; exit status 1 if a byte was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from pdlog import SharedMemory  # noqa: E402
from pdlog.kv import KVManager, KVPoll, KVReceiver, KVSender  # noqa: E402

PAGES_A_ROOM = 4


def pattern(room: int, position: int, size: int) -> bytes:
    seed = (room * 2654435761 + position * 40503 + 1) & 0xFFFFFFFF
    word = seed.to_bytes(4, "little") + (seed ^ 0x5BD1E995).to_bytes(4, "little")
    return (word * (size // 8 + 1))[:size]


def aborted(room: int) -> bool:
    return room % 3 == 0


def prefill(args: argparse.Namespace) -> dict[str, int]:
    memory = SharedMemory(2 * PAGES_A_ROOM, args.page_bytes, name="prefill")
    out = {"sent": 0, "failed": 0}
    with KVManager(args.socket, [memory]) as mgr:
        assert mgr.wait_live(args.patience), f"the node is not heard: {mgr.error}"
        for room in rooms(args):
            sender = KVSender(mgr, "", room)
            source = [(room + i) % memory.pages for i in range(PAGES_A_ROOM)]
            for position, page in enumerate(source):
                memory.page(page)[:] = pattern(room, position, args.page_bytes)
            memory.aux(room % memory.aux_rows)[:8] = room.to_bytes(8, "little")
            sender.init(len(source), room % memory.aux_rows)
            half = len(source) // 2
            sender.send(source[:half])
            if not aborted(room):  # the second half of an aborted room is never computed
                sender.send(source[half:])
            end = sender.wait(args.patience)
            assert end in (KVPoll.Success, KVPoll.Failed), f"room {room} did not end: {end!r}"
            out["sent" if end is KVPoll.Success else "failed"] += 1
            sender.clear()
            assert sender.wait_source_free(args.patience), f"room {room} still reads its source pages"
    return out


def decode(args: argparse.Namespace) -> dict[str, Any]:
    # As many aux rows as the node is configured with: by default as pages, at least 64.
    memory = SharedMemory(args.pool, args.page_bytes, aux_rows=max(args.pool, 64), name="decode")
    freed: list[int] = []
    out: dict[str, Any] = {"received": 0, "aborted": 0, "corrupt": 0, "bases": []}
    bases: set[str] = set()
    count = {"received": 0, "aborted": 0, "corrupt": 0}
    with KVManager(args.socket, [memory], on_released=lambda room, _seq: freed.append(room)) as mgr:
        assert mgr.wait_live(args.patience), f"the node is not heard: {mgr.error}"
        for room in rooms(args):
            receiver = KVReceiver(mgr, args.peer, room, request_id=f"example-{room}")
            until(lambda: receiver.poll() is KVPoll.WaitingForInput, args.patience, "the prefill node is not found")
            receiver.init()
            receiver.send_metadata(range(PAGES_A_ROOM))  # the same pages for every room: reused at once
            if aborted(room):
                until(
                    lambda: mgr.client.room(room).state == "transferring" or receiver.poll() is KVPoll.Failed,
                    args.patience,
                    f"nothing of room {room} landed",
                )
                receiver.abort("the client went away")
                assert receiver.wait(args.patience) is KVPoll.Failed
                count["aborted"] += 1
            else:
                if receiver.wait(args.patience) is not KVPoll.Success:
                    receiver.failure_exception()
                wrong = [
                    p
                    for i, p in enumerate(receiver.pages)
                    if memory.page(p) != pattern(room, i, args.page_bytes)
                ]
                assert receiver.aux_index is not None
                if bytes(memory.aux(receiver.aux_index)[:8]) != room.to_bytes(8, "little"):
                    wrong.append(-1)
                count["received"] += 1
                count["corrupt"] += len(wrong)
            receiver.clear()
            assert receiver.wait_pages_free(args.patience), f"the pages of room {room} did not come free"
            bases.add(receiver.basis)
        until(lambda: len(freed) == args.rooms, args.patience, "a release was not told")
        pool = mgr.client.pages()
    out.update(count, bases=sorted(bases), pages_not_free=pool.owned + pool.held + pool.quarantined)
    return out


def rooms(args: argparse.Namespace) -> range:
    return range(args.first, args.first + args.rooms)


def until(done: object, patience: float, what: str) -> None:
    end = time.monotonic() + patience
    while not done():  # type: ignore[operator]
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.005)


def both(args: argparse.Namespace) -> int:
    """Start an engine of each kind, and put their answers together."""
    common = ["--rooms", args.rooms, "--first", args.first, "--page-bytes", args.page_bytes, "--pool", args.pool]
    common += ["--patience", args.patience, "--peer", args.peer]
    started = {
        role: subprocess.Popen(
            [sys.executable, __file__, "--role", role, "--socket", socket, *map(str, common)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for role, socket in (("prefill", args.prefill), ("decode", args.decode))
    }
    summary: dict[str, object] = {}
    status = 0
    for role, process in started.items():
        text, _ = process.communicate()
        status = status or process.returncode
        if process.returncode == 0:
            summary[role] = json.loads(text)
    print(json.dumps(summary))
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefill", help="socket of the prefill node")
    parser.add_argument("--decode", help="socket of the decode node")
    parser.add_argument("--peer", default="", help="the prefill's node name or bootstrap address, if there are several")
    parser.add_argument("--rooms", type=int, default=9)
    parser.add_argument("--first", type=int, default=1, help="number of the first room")
    parser.add_argument("--page-bytes", type=int, default=65536)
    parser.add_argument("--pool", type=int, default=1024, help="pages of the decode node (its key `pages`)")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds before something counts as stuck")
    parser.add_argument("--role", choices=["prefill", "decode"], help="run one engine alone")
    parser.add_argument("--socket", help="of that engine's node")
    args = parser.parse_args()
    if args.role is None:
        return both(args)
    out: dict[str, Any] = prefill(args) if args.role == "prefill" else decode(args)
    print(json.dumps(out))
    return 1 if out.get("corrupt") else 0


if __name__ == "__main__":
    sys.exit(main())
