"""The queue between rollouts and training."""

from __future__ import annotations

import asyncio
from collections import deque

from art.pipeline_trainer.facts import FinishedGroup


class GroupQueue:
    """Holds finished groups, at most so many; what is in it when it is closed is still handed out.

    Args:
        maxsize: How many groups fit in.
    """

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self._groups: deque[FinishedGroup] = deque()
        self._room = asyncio.Semaphore(maxsize)
        self._news = asyncio.Event()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._groups)

    async def put(self, group: FinishedGroup) -> None:
        """Add a group, once there is room."""
        await self._room.acquire()
        self._groups.append(group)
        self._news.set()

    async def get(self) -> FinishedGroup | None:
        """Take the oldest group, once there is one; None when there will be no more."""
        while not self._groups and not self._is_closed:
            self._news.clear()
            await self._news.wait()
        return self.get_nowait()

    def get_nowait(self) -> FinishedGroup | None:
        """Take the oldest group; None when there is none now."""
        if not self._groups:
            return None
        self._room.release()
        return self._groups.popleft()

    def close(self) -> None:
        """Note that nothing more will come."""
        self._is_closed = True
        self._news.set()
