"""A task that only wants to run every few milliseconds, and notes how long the event loop did not let it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

BEAT_S = 0.005


async def beat(pauses_s: list[float]) -> None:
    """Append the length of each turn of the loop, for ever.

    Time in which the loop's thread was ready but the machine ran something else is taken off: on a busy machine that
    says nothing about the loop.
    """
    schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    last_s, last_ready_s = time.monotonic(), _ready_s(schedstat)
    while True:
        await asyncio.sleep(BEAT_S)
        now_s, ready_s = time.monotonic(), _ready_s(schedstat)
        pauses_s.append(now_s - last_s - (ready_s - last_ready_s))
        last_s, last_ready_s = now_s, ready_s


def _ready_s(schedstat: Path) -> float:
    """Return how long a thread has waited for a processor so far; 0 where the kernel does not tell."""
    try:
        return int(schedstat.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
