"""Client of a pdlog node's engine API.

Pure standard library, over the unix socket of the node on the same host::

    from pdlog import Client, SharedMemory

    node = Client("/run/pdnode/pdnode.sock")
    memory = SharedMemory(pages=1024, page_bytes=65536)
    memory.register(node)
    room = node.open_receive(7, count=4, prefill="p0")

``Client`` blocks, ``AsyncClient`` is for asyncio; ``pdlog.kv`` has classes in
the shape of SGLang's KVManager, KVSender and KVReceiver.
"""

from .aio import AsyncClient, AsyncWatch
from .client import Client, Watch
from .errors import (
    BadRequest,
    CallFailed,
    DeadlineExceeded,
    Incompatible,
    LimitReached,
    NotReady,
    PagesBusy,
    PdlogError,
    Refused,
    RoomLive,
    Unavailable,
    UnknownRoom,
    WeakPeer,
)
from .memory import SharedMemory
from .types import (
    EngineWrite,
    Notice,
    NoticeKind,
    Pages,
    PageView,
    Pair,
    PairView,
    PeerRankView,
    PeerView,
    Point,
    Poll,
    Reserved,
    RoomState,
    RoomView,
    Status,
    WriteOutcome,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncWatch",
    "BadRequest",
    "CallFailed",
    "Client",
    "DeadlineExceeded",
    "EngineWrite",
    "Incompatible",
    "LimitReached",
    "NotReady",
    "Notice",
    "NoticeKind",
    "PageView",
    "Pages",
    "PagesBusy",
    "Pair",
    "PairView",
    "PdlogError",
    "PeerRankView",
    "PeerView",
    "Point",
    "Poll",
    "Refused",
    "Reserved",
    "RoomLive",
    "RoomState",
    "RoomView",
    "SharedMemory",
    "Status",
    "Unavailable",
    "UnknownRoom",
    "Watch",
    "WeakPeer",
    "WriteOutcome",
]
