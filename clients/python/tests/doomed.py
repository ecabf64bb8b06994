"""An engine that is killed: it opens rooms, says so, and waits for its end."""

from __future__ import annotations

import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from pdlog import SharedMemory  # noqa: E402
from pdlog.kv import KVManager, KVPoll, KVReceiver  # noqa: E402

PATIENCE = 30.0


def main() -> None:
    memory = SharedMemory(16, 4096, name="doomed-engine")
    with KVManager(sys.argv[1], [memory]) as mgr:
        assert mgr.wait_live(PATIENCE), mgr.error
        sys.stdin.readline()  # the nodes know each other
        for room in (71, 72):
            r = KVReceiver(mgr, "", room)
            r.send_metadata([2 * (room - 71), 2 * (room - 71) + 1])
            assert r.poll() is KVPoll.Transferring, r.poll()
        print("open", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
