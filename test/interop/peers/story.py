"""What the stories of both sides share."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from .dialects import DIALECTS, Dialect
from .engine import Engine

# Room numbers are 63 bits wide. Each story has its own, from here on.
FIRST_ROOM, ROOMS_A_STORY = 4793981895866140836, 100_000


class Story:
    def __init__(self, dialect: str, version: str, ranks: int) -> None:
        self.dialect: Dialect = DIALECTS[dialect]
        self.version, self.ranks = version, ranks
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.engine: Engine
        self.base = FIRST_ROOM  # first room number of the story that is told

    def close(self) -> None:
        self.engine.close()
        self.context.destroy(linger=0)

    def tell(self, story: Callable[..., None], size: list[float]) -> None:
        """Play one story, on rooms of its own."""
        story(self, *size)
        self.base += ROOMS_A_STORY
