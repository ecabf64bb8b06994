"""Round trips of one small call, in microseconds: roundtrip.py SOCKET COUNT.

Prints the median. A benchmark of the engine API (make bench-engine) runs it
against a node and against a bare Connect server that echoes.
"""

from __future__ import annotations

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from pdlog import Client  # noqa: E402


def main() -> None:
    count = int(sys.argv[2])
    took = []
    with Client(sys.argv[1]) as client:
        for _ in range(count):
            began = time.perf_counter_ns()
            client.poll([7])
            took.append(time.perf_counter_ns() - began)
    took.sort()
    print(took[count // 2] / 1000)


main()
