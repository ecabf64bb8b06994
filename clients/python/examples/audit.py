#!/usr/bin/env python3
"""Follow the milestones of a pdlog fleet on NATS, with the standard library alone.

    audit.py nats://HOST:PORT [SUBJECT] [--since-start] [--count N]

Prints one JSON object per milestone: subject, and the event. SUBJECT is
pdlog.audit.CLUSTER.NODE.TYPE with wildcards (default pdlog.audit.>), see
docs/audit-stream.md. Without --since-start only what comes from now on is
shown; with it an ordered JetStream consumer replays the stream PDLOG_AUDIT from
its beginning first, so that nothing is left out. User and password may stand in
the URL.

It speaks the NATS client protocol: INFO, CONNECT, SUB, MSG/HMSG, PING/PONG.
"""

import argparse
import json
import os
import socket
import sys
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

STREAM = "PDLOG_AUDIT"


class Nats:
    """A connection that subscribes. Errors are OSError and ValueError."""

    def __init__(self, url: str) -> None:
        u = urlsplit(url)
        self.sock = socket.create_connection((u.hostname or "127.0.0.1", u.port or 4222), timeout=10)
        self.file = self.sock.makefile("rb")
        self.inbox = "_INBOX." + os.urandom(12).hex()
        if not self._line().startswith("INFO "):
            raise ValueError("not a NATS server")
        options = {"verbose": False, "pedantic": False, "name": "pdlog audit.py", "lang": "python", "version": "1", "headers": True, "no_responders": True}
        if u.username and u.password:
            options |= {"user": unquote(u.username), "pass": unquote(u.password)}
        elif u.username:
            options["auth_token"] = unquote(u.username)
        self._send(f"CONNECT {json.dumps(options)}\r\nPING\r\n")
        while (line := self._line()) != "PONG":
            if line.startswith("-ERR"):
                raise ValueError(line[5:].strip("'"))
        self.sock.settimeout(None)

    def _line(self) -> str:
        line = self.file.readline()
        if not line:
            raise OSError("the server closed the connection")
        return line.decode().rstrip("\r\n")

    def _send(self, text: str, body: bytes = b"") -> None:
        self.sock.sendall(text.encode() + body)

    def subscribe(self, subject: str, sid: int) -> None:
        self._send(f"SUB {subject} {sid}\r\n")

    def publish(self, subject: str, reply: str, body: bytes) -> None:
        self._send(f"PUB {subject} {reply} {len(body)}\r\n", body + b"\r\n")

    def messages(self) -> Iterator[tuple[int, str, str, str, bytes]]:
        """Gives (sid, subject, reply, status, body) for ever; status is that of a
        message without a body, such as 503 when nobody answers. Sid 0 is a PONG."""
        while True:
            line = self._line()
            if line == "PING":
                self._send("PONG\r\n")
            elif line == "PONG":
                yield 0, "", "", "", b""
            elif line.startswith("-ERR"):
                raise ValueError(line[5:].strip("'"))
            elif line.startswith(("MSG ", "HMSG ")):
                kind, subject, sid, *rest = line.split()
                total = int(rest[-1])
                head = int(rest[-2]) if kind == "HMSG" else 0
                reply = rest[0] if len(rest) > (2 if kind == "HMSG" else 1) else ""
                data = self.file.read(total + 2)[:total]
                first = data[:head].split(b"\r\n", 1)[0].split()
                yield int(sid), subject, reply, first[1].decode() if len(first) > 1 else "", data[head:]


def replay(nc: Nats, subject: str) -> None:
    """Has the server deliver the stream from its first message on to sid 1: an
    ephemeral consumer without acknowledgements, which goes when we do."""
    deliver = nc.inbox + ".d"
    nc.subscribe(deliver, 1)
    nc.subscribe(nc.inbox + ".r", 2)
    config = {"filter_subject": subject, "deliver_subject": deliver, "deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant", "mem_storage": True, "num_replicas": 1}
    body = json.dumps({"stream_name": STREAM, "config": config}).encode()
    nc.publish(f"$JS.API.CONSUMER.CREATE.{STREAM}", nc.inbox + ".r", body)


def main() -> int:
    p = argparse.ArgumentParser(description="follow the milestones of a pdlog fleet")
    p.add_argument("url")
    p.add_argument("subject", nargs="?", default="pdlog.audit.>")
    p.add_argument("--since-start", action="store_true", help="from the stream's beginning on")
    p.add_argument("--count", type=int, default=0, help="end after so many")
    a = p.parse_args()
    try:
        nc = Nats(a.url)
        if a.since_start:
            replay(nc, a.subject)
        else:
            nc.subscribe(a.subject, 1)
        nc._send("PING\r\n")  # its PONG says that the server knows the subscription
        seen = 0
        for sid, subject, _, status, body in nc.messages():
            if sid == 0:
                print("following", a.subject, file=sys.stderr, flush=True)
                continue
            if sid == 2:  # the answer to our request for a consumer
                error = {"description": "nobody answers: no JetStream"} if status == "503" else json.loads(body).get("error")
                if error:
                    raise ValueError(error.get("description"))
                continue
            if not body:
                continue  # a heartbeat
            print(json.dumps({"subject": subject, "event": json.loads(body)}), flush=True)
            seen += 1
            if a.count and seen == a.count:
                return 0
    except KeyboardInterrupt:
        return 0
    except (OSError, ValueError) as e:
        print(f"audit.py: {a.url}: {e}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
