"""A task that only wants to run every few milliseconds, and notes how long the event loop did not let it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

BEAT_S = 0.005
TASKS = Path("/proc/self/task")


async def beat(pauses_s: list[float]) -> None:
    """Append the length of each turn of the loop, for ever.

    Time in which the machine ran something else, although a thread of this process was ready, is taken off: each of
    them may have held the interpreter's lock meanwhile. On a busy machine it says nothing about the loop.
    """
    last_s, last_ready_s = time.monotonic(), _ready_s()
    while True:
        await asyncio.sleep(BEAT_S)
        now_s, ready_s = time.monotonic(), _ready_s()
        pauses_s.append(now_s - last_s - waited_s(last_ready_s, ready_s))
        last_s, last_ready_s = now_s, ready_s


@contextlib.contextmanager
def as_light_as_a_script() -> Iterator[None]:
    """Have the garbage collector leave alone what the tests have loaded, which a script has not.

    With torch, transformers and pytest in one process it holds every thread up for a third of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def waited_s(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return how long this process's threads waited for a processor between two readings, in seconds."""
    return sum(seconds - before.get(thread, 0.0) for thread, seconds in after.items())


def _ready_s() -> dict[str, float]:
    """Return how long each thread has waited for a processor so far; nothing where the kernel does not tell."""
    ready_s = {}
    for task in TASKS.glob("*"):
        try:
            ready_s[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError):  # it has ended, or the kernel keeps no count
            continue
    return ready_s
