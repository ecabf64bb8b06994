"""SGLang's bootstrap HTTP (wire.md 2): the server of a prefill, the questions of
a decode."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .dialects import expect
from .sockets import LOCALHOST

ASK_ALL = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"

# The topology's keys, no more and no fewer: an older decode builds its object
# from all of them by keyword (F33).
NULL_KEYS = (
    "target_tp_rank", "target_tp_ranks", "target_cp_ranks", "target_pp_ranks", "required_dst_info_num",
    "required_prefill_response_num",
)  # fmt: skip
TOPOLOGY_KEYS = {
    "attn_tp_size", "attn_cp_size", "dp_size", "pp_size", "page_size", "kv_cache_dtype", "follow_bootstrap_room",
    "enable_dsa_cache_layer_split", "prefill_http_port", *NULL_KEYS,
}  # fmt: skip


@dataclass
class Topology:
    tp: int = 1
    page_size: int = 64
    dtype: str = "auto"
    more: dict[str, Any] = field(default_factory=dict)  # keys of a newer version

    def answer(self) -> dict[str, Any]:
        known = {
            "attn_tp_size": self.tp, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": self.page_size,
            "kv_cache_dtype": self.dtype, "follow_bootstrap_room": True, "enable_dsa_cache_layer_split": False,
            "prefill_http_port": 30000, **dict.fromkeys(NULL_KEYS),
        }  # fmt: skip
        return {**known, **self.more}


class Server:
    """A prefill's bootstrap server. It keeps every request it got."""

    def __init__(self, topology: Topology, port: int = 0) -> None:
        self.topology = topology
        self.ranks: dict[int, str] = {}  # by tp rank: "ip:port"
        self.healthy = True
        self.requests: list[tuple[str, str]] = []
        self._open: list[socket.socket] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, kind, body = outer._get(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def process_request(self, request: Any, client_address: Any) -> None:
                outer._open.append(request)
                super().process_request(request, client_address)

            def handle_error(self, *_: Any) -> None:
                pass  # a client that went away

        self._http = Quiet((LOCALHOST, port), Handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"{LOCALHOST}:{self.port}"

    def close(self) -> None:
        """End it as its process would: with the connections that are kept alive."""
        self._http.shutdown()
        self._http.server_close()
        for s in self._open:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed before

    def _get(self, target: str) -> tuple[int, str, bytes]:
        self.requests.append(("GET", target))
        path, _, query = target.partition("?")
        text = "text/plain; charset=utf-8"
        if not self.healthy:
            return 500, text, b"500"
        if path == "/health":
            return 200, text, b"OK"
        if path != "/route":
            return 404, text, b"404: Not Found"  # aiohttp's own answer, to /pdlog/v1/node too
        asked = {k: v[0] for k, v in urllib.parse.parse_qs(query).items()}
        names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
        if set(asked) != set(names):
            return 400, text, b"missing"
        dp, cp, tp, pp = (int(asked[n]) for n in names)
        if len(self.ranks) < self.topology.tp:
            return 503, text, b"Prefill server not fully registered yet (%d workers registered)." % len(self.ranks)
        if (dp, cp, tp, pp) == (-1, -1, -1, -1):
            return 200, "application/json", json.dumps(self.topology.answer()).encode()
        if (dp, cp, pp) != (0, 0, 0) or tp not in self.ranks:
            return 404, text, b"not found"
        ip, _, port = self.ranks[tp].rpartition(":")
        return 200, "application/json", json.dumps({"rank_ip": ip, "rank_port": int(port)}).encode()


def ask(address: str, method: str, path: str, body: Any = None) -> tuple[int, str, bytes]:
    """One request: status, content type, body."""
    host, _, port = address.rpartition(":")
    c = http.client.HTTPConnection(host, int(port), timeout=5)
    try:
        raw = None if body is None else json.dumps(body)
        c.request(method, path, raw, {"Content-Type": "application/json"} if raw else {})
        r = c.getresponse()
        return r.status, r.headers.get("Content-Type", ""), r.read()
    finally:
        c.close()


def text(address: str, method: str, path: str, status: int, answer: str, body: Any = None) -> None:
    """The answer is this text, byte for byte."""
    got = ask(address, method, path, body)
    want = (status, "text/plain; charset=utf-8", answer.encode())
    expect(got == want, f"{method} {path}: {got!r}, want {want!r}")


def topology(address: str) -> dict[str, Any]:
    """The topology, with exactly the keys that this version of decode knows."""
    status, _, raw = ask(address, "GET", f"/route?{ASK_ALL}")
    expect(status == 200, f"the topology is answered {status} {raw!r}")
    t = json.loads(raw)
    expect(set(t) == TOPOLOGY_KEYS, f"topology keys {sorted(set(t) ^ TOPOLOGY_KEYS)} too many or missing")
    expect(all(t[k] is None for k in NULL_KEYS), f"keys that are always null: {t}")
    return dict(t)


def rank_address(address: str, tp: int) -> str:
    """Where a prefill rank's PULL socket is."""
    path = f"/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank={tp}&target_pp_rank=0"
    status, _, raw = ask(address, "GET", path)
    expect(status == 200, f"rank {tp} is answered {status} {raw!r}")
    r = json.loads(raw)
    expect(set(r) == {"rank_ip", "rank_port"}, f"rank keys {sorted(r)}")
    expect(type(r["rank_ip"]) is str and type(r["rank_port"]) is int, f"rank types {r}")
    return f"{r['rank_ip']}:{r['rank_port']}"
