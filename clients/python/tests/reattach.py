"""An engine whose node dies and comes back; driven line by line by client_test.go."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from pdlog import SharedMemory  # noqa: E402
from pdlog.kv import KVManager, KVPoll, KVReceiver  # noqa: E402

PATIENCE = 30.0


def say(word: str) -> None:
    print(word, flush=True)


def main() -> None:
    memory = SharedMemory(16, 4096)
    freed: list[int] = []
    with KVManager(sys.argv[1], [memory], on_released=lambda room, _seq: freed.append(room)) as mgr:
        assert mgr.wait_live(PATIENCE), mgr.error
        sys.stdin.readline()  # the nodes know each other
        receivers = [KVReceiver(mgr, "", room) for room in (61, 62)]
        for i, r in enumerate(receivers):
            r.send_metadata([2 * i, 2 * i + 1])
            assert r.poll() is KVPoll.Transferring, r.poll()
        say("open")
        sys.stdin.readline()  # the node was killed
        assert mgr._wait(lambda: not mgr.live, PATIENCE), "its end was not noticed"
        say("gone")
        sys.stdin.readline()  # and is back
        assert mgr.wait_live(PATIENCE), mgr.error
        assert receivers[0].poll() is KVPoll.Transferring and not receivers[0].pages_free
        receivers[0].abort("after the restart")
        assert receivers[0].wait(PATIENCE) is KVPoll.Failed
        assert receivers[0].wait_pages_free(PATIENCE)
        assert not receivers[1].pages_free, "a room that nobody aborted was released"
        say(f"released {receivers[0].basis} {freed}")
        receivers[1].clear()  # not ended: aborted
        assert receivers[1].wait_pages_free(PATIENCE)
        receivers[0].clear()
        assert not mgr._rooms, mgr._rooms
        say(f"done {mgr.client.pages().free}")


if __name__ == "__main__":
    main()
