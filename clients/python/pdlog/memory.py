"""Memory that a node can map: pages first, aux rows behind them."""

from __future__ import annotations

import mmap
import os
from typing import Protocol


class Registrar(Protocol):
    def register_memory(
        self,
        rank: int,
        path: str,
        page_bytes: int,
        pages: int,
        aux_bytes: int,
        aux_rows: int,
        *,
        fd: int | None = None,
    ) -> bool: ...


class SharedMemory:
    """A memfd of one rank, for a node on the same host.

    All sizes in bytes. An engine that already has its pool in a file or in
    /dev/shm registers that by its own path instead.
    """

    def __init__(self, pages: int, page_bytes: int, aux_rows: int = 64, aux_bytes: int = 64, name: str = "pdlog") -> None:
        if min(pages, page_bytes, aux_rows, aux_bytes) < 1:
            raise ValueError("sizes must be at least 1")
        self.pages, self.page_bytes = pages, page_bytes
        self.aux_rows, self.aux_bytes = aux_rows, aux_bytes
        size = pages * page_bytes + aux_rows * aux_bytes
        self._fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, size)
            self._map = mmap.mmap(self._fd, size)
        except BaseException:
            os.close(self._fd)
            raise
        self._view = memoryview(self._map)

    @property
    def path(self) -> str:
        """Where the node finds it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def page(self, number: int) -> memoryview:
        """The bytes of a page, to read and to write."""
        return self._slice(number, self.pages, 0, self.page_bytes)

    def aux(self, row: int) -> memoryview:
        return self._slice(row, self.aux_rows, self.pages * self.page_bytes, self.aux_bytes)

    def _slice(self, index: int, end: int, base: int, size: int) -> memoryview:
        if not 0 <= index < end:
            raise IndexError(f"{index} is not in [0, {end})")
        at = base + index * size
        return self._view[at : at + size]

    def register(self, client: Registrar, rank: int = 0) -> bool:
        """Pass it to a node. The same memory again is no news to the node."""
        return client.register_memory(
            rank, self.path, self.page_bytes, self.pages, self.aux_bytes, self.aux_rows, fd=self._fd
        )

    def close(self) -> None:
        """Let it go. Views of it that are still held keep the mapping."""
        self._view.release()
        try:
            self._map.close()
        except BufferError:
            pass  # a page() is still held; it ends with that
        os.close(self._fd)
