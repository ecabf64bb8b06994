"""The engine's end of the node under test: the stand-in that registers memory,
opens rooms and hears how they end, through clients/python."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from pdlog import Client, Notice, NoticeKind, PdlogError, SharedMemory, WriteOutcome

from .dialects import Failure
from .sockets import PATIENCE

PAGES, PAGE, ROWS, ROW = 64, 4096, 64, 48  # pages, bytes of a page, aux rows, bytes of a row


def pattern(room: int, page: int, size: int) -> bytes:
    """Bytes that tell a room and a place in it apart."""
    seed = (room * 31 + (page + 1) * 7) & 0xFF
    return bytes((seed + i) & 0xFF for i in range(256)) * (size // 256) + bytes((seed + i) & 0xFF for i in range(size % 256))


class Engine:
    def __init__(self, socket: str, page: int = PAGE) -> None:
        self.client = Client(socket, timeout=PATIENCE)
        self.page = page
        self.memory = SharedMemory(PAGES, page, ROWS, ROW)
        self.memory.register(self.client)
        self.seen: list[Notice] = []
        self._queue: queue.Queue[Notice | None] = queue.Queue()
        self._watch = self.client.watch()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for n in self._watch:
                self._queue.put(n)
        except PdlogError:
            pass
        self._queue.put(None)

    def next(self, patience: float) -> Notice | None:
        """The next notice; None: there is none in time."""
        try:
            n = self._queue.get(timeout=patience) if patience > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None
        if n is None:
            raise Failure("the node's stream has ended")
        return n

    def take(self) -> Notice | None:
        """The oldest notice that is here and was not asked for yet."""
        return self.seen.pop(0) if self.seen else self.next(0)

    def hear(self, kind: NoticeKind, room: int, patience: float = PATIENCE) -> Notice:
        """The first notice of a kind about a room; others are kept for later."""
        return self.find(f"{kind.value} of room {room}", lambda n: n.kind is kind and n.room == room, patience)

    def find(self, what: str, match: Callable[[Notice], bool], patience: float = PATIENCE) -> Notice:
        for i, n in enumerate(self.seen):
            if match(n):
                return self.seen.pop(i)
        deadline = time.monotonic() + patience
        while (left := deadline - time.monotonic()) > 0:
            n = self.next(left)
            if n is None:
                break
            if match(n):
                return n
            self.seen.append(n)
        raise Failure(f"no {what}; heard {[(n.kind.value, n.room, n.reason) for n in self.seen]}")

    def heard(self, kind: NoticeKind, room: int) -> bool:
        """Whether such a notice is here by now."""
        while (n := self.next(0)) is not None:
            self.seen.append(n)
        return any(n.kind is kind and n.room == room for n in self.seen)

    def fill(self, room: int, page: int, place: int) -> None:
        self.memory.page(page)[:] = pattern(room, place, self.page)

    def completed(self, token: int) -> None:
        self.client.write_done(token, WriteOutcome.COMPLETED)

    def close(self) -> None:
        self._watch.close()
        self._thread.join()
        self.client.close()
        self.memory.close()
