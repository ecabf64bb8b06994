"""Plays stories, one after another, against one node:
``python3 -m peers.run decode transfer lost_ack --dialect nixl …``.

A decode is given a node. A prefill comes first: it says on stdout
where its bootstrap server is, then reads the node's socket from stdin.
Exit code 1 with one line on stderr: the node departed from the wire.
"""

from __future__ import annotations

import argparse
import json
import sys

from . import decode_stories, prefill_stories
from .dialects import DIALECTS, VERSIONS, Failure
from .story import Story


def main() -> int:
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("side", choices=("decode", "prefill"))
    a.add_argument("stories", nargs="+")
    a.add_argument("--dialect", choices=sorted(DIALECTS), required=True)
    a.add_argument("--version", choices=VERSIONS, default="v3")
    a.add_argument("--ranks", type=int, default=1, help="of the prefill side")
    a.add_argument("--socket", default="")
    a.add_argument("--bootstrap", default="")
    a.add_argument("--amount", type=float, help="rooms, or seconds, where a story has a size")
    q = a.parse_args()
    module = decode_stories if q.side == "decode" else prefill_stories
    told = ""
    s: Story | None = None
    try:
        if q.side == "decode":
            s = decode_stories.DecodeStory(q.dialect, q.version, q.ranks, q.socket, q.bootstrap)
        else:
            s = prefill(q)
        for told in q.stories:
            size = [] if q.amount is None else [q.amount if told == "flood" else int(q.amount)]
            s.tell(getattr(module, told), size)
    except Failure as e:
        print(f"{q.side} {told} ({q.dialect} {q.version}): {e}", file=sys.stderr)
        return 1
    finally:
        if s is not None:
            s.close()
    return 0


def prefill(q: argparse.Namespace) -> prefill_stories.PrefillStory:
    s = prefill_stories.PrefillStory(q.dialect, q.version, q.ranks)
    s.server.topology.more = prefill_stories.TOPOLOGIES.get(q.stories[0], {})
    s.announce()
    print(json.dumps({"bootstrap": s.server.address}), flush=True)
    socket = sys.stdin.readline().strip()
    if q.stories[0] == "other_pages_are_refused":  # nobody registers with such a prefill
        s.wait_for_refusal(socket)
    else:
        s.meet(socket)
    return s


if __name__ == "__main__":
    sys.exit(main())
