"""A decode engine with one room, which it aborts when it is sent SIGUSR1.

It says when the room is open, when it was aborted, and on what basis its pages
came free: only then may they be given to another request.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from pdlog import SharedMemory  # noqa: E402
from pdlog.kv import KVManager, KVPoll, KVReceiver  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decode", required=True, help="socket of the decode node")
    parser.add_argument("--room", type=int, default=77)
    parser.add_argument("--pool", type=int, default=1024, help="pages of the node (its key `pages`)")
    parser.add_argument("--patience", type=float, default=60.0)
    args = parser.parse_args()
    told = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: told.set())
    memory = SharedMemory(args.pool, 4096, aux_rows=max(args.pool, 64))
    with KVManager(args.decode, [memory]) as mgr:
        assert mgr.wait_live(args.patience), mgr.error
        receiver = KVReceiver(mgr, "", args.room, request_id="quickstart")
        while receiver.poll() is not KVPoll.WaitingForInput:
            time.sleep(0.05)
        receiver.send_metadata(range(8))
        print(f"room {args.room}: open, pages 0 to 7", flush=True)
        told.wait()
        receiver.abort("the client went away")
        print(f"room {args.room}: aborted, pages free: {receiver.pages_free}", flush=True)
        assert receiver.wait_pages_free(args.patience), "the pages did not come free"
        print(f"room {args.room}: pages free, released on {receiver.basis}", flush=True)
        receiver.clear()


if __name__ == "__main__":
    main()
