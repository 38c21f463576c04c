from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from art.errors import ConfigurationError
from art.utils.limit_concurrency import limit_concurrency


class Load:
    """Notes how many calls run at once for each name."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.highest: Counter[str] = Counter()

    async def work(self, name: str) -> str:
        self.running[name] += 1
        self.highest[name] = max(self.highest[name], self.running[name])
        await asyncio.sleep(0)
        self.running[name] -= 1
        return name.upper()


@pytest.mark.asyncio
async def test_no_more_calls_run_than_told() -> None:
    load = Load()
    limited = limit_concurrency(2)(load.work)
    assert await asyncio.gather(*(limited("a") for _ in range(6))) == ["A"] * 6
    assert load.highest == {"a": 2}


@pytest.mark.asyncio
async def test_limit_holds_for_each_key_by_itself() -> None:
    load, both = Load(), Load()

    @limit_concurrency(1, derive_key=lambda name: name)
    async def limited(name: str) -> None:
        await asyncio.gather(load.work(name), both.work("any"))

    await asyncio.gather(*(limited(name) for name in "abab"))
    assert load.highest == {"a": 1, "b": 1}
    assert both.highest == {"any": 2}


def test_limit_works_in_one_event_loop_after_another() -> None:
    load = Load()
    limited = limit_concurrency(1)(load.work)

    async def main() -> None:
        await asyncio.gather(*(limited("a") for _ in range(3)))

    asyncio.run(main())
    asyncio.run(main())
    assert load.highest == {"a": 1}


def test_event_loops_of_several_threads_are_limited_each_by_itself() -> None:
    both_work = threading.Barrier(2, timeout=10)

    @limit_concurrency(1)
    async def limited() -> None:
        await asyncio.to_thread(both_work.wait)

    async def main() -> None:
        await asyncio.gather(limited(), limited())

    with ThreadPoolExecutor(2) as threads:
        for running in [threads.submit(asyncio.run, main()) for _ in range(2)]:
            running.result()


def test_nothing_is_kept_of_calls_that_have_ended() -> None:
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    @limit_concurrency(1)
    async def limited() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))

    asyncio.run(limited())
    gc.collect()
    assert loops[0]() is None


@pytest.mark.asyncio
async def test_failed_and_cancelled_calls_give_their_place_back() -> None:
    @limit_concurrency(1)
    async def limited(error: Exception | None) -> str:
        if error is not None:
            raise error
        return "ok"

    with pytest.raises(KeyError):
        await limited(KeyError())
    task = asyncio.create_task(limited(None))
    await asyncio.sleep(0)
    task.cancel()
    assert await limited(None) == "ok"


def test_limit_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="n=0"):
        limit_concurrency(0)
