from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, cast

import pytest

from art.batches import trajectory_group_batches
from art.errors import ConfigurationError, ServerDiedError
from art.gather_context import get_gather_context
from art.trajectories import Trajectory, TrajectoryGroup
from tests.support.conversations import make_trajectory


class Groups:
    """Groups that end when told to, and notes of what they did."""

    def __init__(self, count: int) -> None:
        self.may_end = [asyncio.Event() for _ in range(count)]
        self.started: list[int] = []
        self.cancelled: list[int] = []

    async def rollout(self, number: int) -> Trajectory:
        self.started.append(number)
        try:
            await self.may_end[number].wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        return make_trajectory(float(number))

    def pending(self, *numbers: int) -> list[Any]:
        return [TrajectoryGroup([self.rollout(number)]) for number in numbers or range(len(self.may_end))]

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.may_end[number].set()


def numbers_of(batch: list[TrajectoryGroup]) -> list[float]:
    return [group.trajectories[0].reward for group in batch]


def batches(groups: Any, **settings: Any) -> AsyncGenerator[list[TrajectoryGroup], None]:
    iterator = trajectory_group_batches(groups, **{"pbar_desc": None, **settings})
    return cast(AsyncGenerator[list[TrajectoryGroup], None], iterator)


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def fail(error: BaseException) -> Trajectory:
    raise error


async def succeed(reward: float = 0.0) -> Trajectory:
    return make_trajectory(reward)


@pytest.mark.asyncio
async def test_batches_come_in_order_of_completion_and_the_last_may_be_short() -> None:
    groups = Groups(5)
    async with aclosing(batches(groups.pending(), batch_size=2)) as iterator:
        waiting = asyncio.ensure_future(anext(iterator))
        await settle()
        groups.end(3)
        await settle()
        assert not waiting.done()
        groups.end(1)
        assert numbers_of(await waiting) == [3, 1]
        groups.end(0, 2, 4)
        assert [len(batch) async for batch in iterator] == [2, 1]


@pytest.mark.asyncio
async def test_no_more_groups_run_than_told_and_they_refill_before_a_batch_is_given() -> None:
    groups = Groups(6)
    taken: list[int] = []

    def lazily() -> Iterator[Any]:
        for number, group in enumerate(groups.pending()):
            taken.append(number)
            yield group

    async with aclosing(batches(lazily(), batch_size=1, max_concurrent_batches=2)) as iterator:
        waiting = asyncio.ensure_future(anext(iterator))
        await settle()
        assert groups.started == [0, 1]
        assert taken == [0, 1]
        groups.end(1)
        await waiting
        await settle()  # the caller is busy with its batch, and a third group runs
        assert groups.started == [0, 1, 2]
        groups.end(0, 2, 3, 4, 5)
        assert len([batch async for batch in iterator]) == 5


@pytest.mark.asyncio
async def test_skipped_batches_never_run() -> None:
    groups = Groups(5)
    groups.end(*range(5))
    given = [numbers_of(b) async for b in batches(groups.pending(), batch_size=2, skip_batches=1)]
    assert sorted(number for batch in given for number in batch) == [2, 3, 4]
    assert groups.started == [2, 3, 4]
    assert [b async for b in batches(groups.pending(), batch_size=2, skip_batches=3)] == []


@pytest.mark.asyncio
async def test_allowance_holds_for_every_batch() -> None:
    def pending() -> list[Any]:
        return [TrajectoryGroup([succeed(), fail(ValueError())]) for _ in range(4)]

    settings = {"batch_size": 1, "max_concurrent_batches": 1}
    given = [batch async for batch in batches(pending(), **settings, max_batch_exceptions=1)]
    assert [len(group.exceptions) for (group,) in given] == [1] * 4
    given = [batch async for batch in batches(pending(), **settings, max_batch_exceptions=0.5)]
    assert len(given) == 4
    with pytest.raises(ValueError):  # noqa: PT011  # any of the failures
        [batch async for batch in batches(pending(), **settings, max_batch_exceptions=0.4)]


@pytest.mark.asyncio
async def test_share_is_that_of_a_batch_however_many_have_been_before() -> None:
    pending = [TrajectoryGroup([succeed(), succeed()]) for _ in range(3)]
    pending.append(TrajectoryGroup([fail(ValueError()), fail(ValueError())]))
    settings = {"batch_size": 1, "max_concurrent_batches": 1, "max_batch_exceptions": 0.5}
    async with aclosing(batches(pending, **settings)) as iterator:
        for _ in range(3):
            await anext(iterator)
        with pytest.raises(ValueError):  # noqa: PT011  # any of the failures
            await anext(iterator)


@pytest.mark.asyncio
async def test_group_that_failed_as_a_whole_is_replaced_by_the_next() -> None:
    async def group(reward: float) -> TrajectoryGroup:
        return TrajectoryGroup([make_trajectory(reward)])

    groups = [group(0.0), fail(ValueError()), group(1.0)]
    given = [numbers_of(b) async for b in batches(groups, batch_size=2, max_batch_exceptions=1)]
    assert given == [[0.0, 1.0]]


@pytest.mark.asyncio
async def test_dead_server_ends_the_batches_before_another_that_is_ready() -> None:
    groups = Groups(3)
    death, may_die = ServerDiedError("exit code -9"), asyncio.Event()

    async def die() -> Trajectory:
        await may_die.wait()
        raise death

    pending = [*groups.pending(), TrajectoryGroup([die()])]
    async with aclosing(batches(pending, batch_size=1, max_batch_exceptions=100)) as iterator:
        groups.end(0)
        assert numbers_of(await anext(iterator)) == [0]
        groups.end(1)
        await settle()
        may_die.set()
        await settle()
        with pytest.raises(ServerDiedError) as caught:
            await anext(iterator)
    assert caught.value is death
    assert groups.cancelled == [2]


@pytest.mark.asyncio
async def test_closed_iteration_cancels_what_runs_and_waits_for_it() -> None:
    groups = Groups(6)
    groups.end(0)
    async with aclosing(batches(groups.pending(), batch_size=1, max_concurrent_batches=3)) as iterator:
        assert numbers_of(await anext(iterator)) == [0]
        await settle()
    assert groups.cancelled == [1, 2, 3]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.asyncio
async def test_abandoned_iteration_cancels_what_runs() -> None:
    groups = Groups(3)
    groups.end(0)
    async for _ in batches(groups.pending(), batch_size=1):
        break
    gc.collect()  # Python closes a generator that nobody holds
    await settle()
    assert groups.cancelled == [1, 2]


@pytest.mark.asyncio
async def test_cancelled_caller_cancels_the_groups() -> None:
    groups = Groups(2)

    async def consume() -> None:
        async for _ in batches(groups.pending(), batch_size=2):
            pass

    task = asyncio.create_task(consume())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(groups.cancelled) == [0, 1]


@pytest.mark.asyncio
async def test_context_of_the_batches_does_not_leak_into_the_caller() -> None:
    outside = get_gather_context()
    async with aclosing(batches([TrajectoryGroup([succeed()])], batch_size=1, max_batch_exceptions=7)) as iterator:
        await anext(iterator)
        assert get_gather_context() == outside


@pytest.mark.asyncio
async def test_bar_counts_trajectories(capsys: pytest.CaptureFixture[str]) -> None:
    pending = [TrajectoryGroup([succeed(1.0), succeed(0.0)]) for _ in range(2)]
    assert len([batch async for batch in batches(pending, batch_size=1, pbar_desc="batches")]) == 2
    bar = capsys.readouterr().err.rstrip().rsplit("\r", 1)[-1]
    assert bar.startswith("batches: 100%")
    assert "4/4" in bar


@pytest.mark.parametrize("settings", [{"batch_size": 0}, {"batch_size": 1, "max_concurrent_batches": 0}])
@pytest.mark.asyncio
async def test_impossible_sizes_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        await anext(batches([], **settings))
