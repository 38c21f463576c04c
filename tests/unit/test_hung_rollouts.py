"""A rollout that hangs, or does not end when it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from art.errors import RolloutTimedOutError
from art.gather import gather_trajectories, gather_trajectory_groups
from art.trajectories import Trajectory, TrajectoryGroup
from tests.support.conversations import make_trajectory


class Hung:
    """A rollout that never ends by itself."""

    def __init__(self) -> None:
        self.was_cancelled = False

    async def run(self) -> Trajectory:
        try:
            return await asyncio.Future()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_ROLLOUT_TIMEOUT", "0.01")


async def succeed() -> Trajectory:
    return make_trajectory(1.0)


@pytest.mark.asyncio
@pytest.mark.usefixtures("short_limit")
async def test_hung_rollout_of_a_group_is_cancelled_and_kept_as_a_failure() -> None:
    hung = Hung()

    (group,) = await gather_trajectory_groups(
        [TrajectoryGroup([hung.run(), succeed()])], pbar_desc=None, max_exceptions=1
    )

    assert [trajectory.reward for trajectory in group] == [1.0]
    (failure,) = group.exceptions
    assert "RolloutTimedOutError" in failure.type
    assert "ART_ROLLOUT_TIMEOUT" in failure.message
    assert "return await asyncio.Future()" in failure.traceback  # where it hung
    assert hung.was_cancelled


@pytest.mark.asyncio
@pytest.mark.usefixtures("short_limit")
async def test_hung_rollout_takes_the_place_of_its_result() -> None:
    first, second = await gather_trajectories([Hung().run(), succeed()], pbar_desc=None, max_exceptions=1)

    assert isinstance(first, RolloutTimedOutError)
    assert first.limit_s == 0.01
    assert isinstance(second, Trajectory)


@pytest.mark.asyncio
@pytest.mark.usefixtures("short_limit")
async def test_hung_rollout_ends_a_gather_that_allows_no_failure() -> None:
    hung, other = Hung(), Hung()

    async def group() -> TrajectoryGroup:
        return TrajectoryGroup([await hung.run()])

    with pytest.raises(TimeoutError, match=r"took longer than 0\.01 s"):
        await gather_trajectory_groups([group(), TrajectoryGroup([other.run()])], pbar_desc=None)

    assert [hung.was_cancelled, other.was_cancelled] == [True, True]


@pytest.mark.asyncio
async def test_time_out_of_a_rollouts_own_is_an_ordinary_failure() -> None:
    async def gives_up() -> Trajectory:
        async with asyncio.timeout(0):
            return await asyncio.Future()

    (outcome,) = await gather_trajectories([gives_up()], pbar_desc=None, max_exceptions=1)

    assert type(outcome) is TimeoutError


@pytest.mark.asyncio
async def test_rollouts_that_ignore_their_cancellation_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("art.owned_tasks.CANCELLATION_NOTICE_S", 0.01)
    named = asyncio.Event()

    async def deaf() -> Trajectory:
        while not named.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await named.wait()
        return make_trajectory()

    async def fail() -> Trajectory:
        await asyncio.sleep(0)  # so that the other one has begun
        raise KeyError("x")

    class Naming(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            named.set()

    handler, logger = Naming(), logging.getLogger("art.owned_tasks")
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyError):
            await gather_trajectories([deaf(), fail()], pbar_desc=None)
    finally:
        logger.removeHandler(handler)

    assert "still waiting for 1 cancelled tasks" in caplog.text
