"""The queue between rollouts and training."""

from __future__ import annotations

import asyncio

import pytest

from art.pipeline_trainer.facts import FinishedGroup
from art.pipeline_trainer.group_queue import GroupQueue
from tests.support.scripted_pipeline import make_group

pytestmark = pytest.mark.asyncio


def make_finished(offset: int) -> FinishedGroup:
    return FinishedGroup(offset, make_group())


async def test_groups_come_in_order_and_no_more_than_fit_in() -> None:
    queue = GroupQueue(2)
    await queue.put(make_finished(0))
    await queue.put(make_finished(1))
    third = asyncio.ensure_future(queue.put(make_finished(2)))
    await asyncio.sleep(0)
    assert (len(queue), third.done()) == (2, False)
    taken = [await queue.get() for _ in range(3)]
    assert [finished.offset for finished in taken if finished is not None] == [0, 1, 2]
    assert queue.get_nowait() is None
    await third


async def test_what_is_in_a_closed_queue_is_still_taken() -> None:
    queue = GroupQueue(5)
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    await queue.put(make_finished(0))
    await queue.put(make_finished(1))
    queue.close()
    first, second = await waiting, await queue.get()
    assert first is not None
    assert second is not None
    assert (first.offset, second.offset) == (0, 1)
    assert await queue.get() is None


async def test_closing_wakes_whoever_waits() -> None:
    queue = GroupQueue(1)
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.close()
    assert await waiting is None
