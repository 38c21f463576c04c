from __future__ import annotations

import asyncio

import pytest

from art.trajectories import Trajectory
from art.yield_trajectory import capture_yielded_trajectory, yield_trajectory, yield_trajectory_context_var
from tests.support.conversations import make_trajectory


async def run(*rewards: float) -> None:
    for reward in rewards:
        await asyncio.sleep(0)
        yield_trajectory(make_trajectory(reward))


@pytest.mark.asyncio
async def test_the_last_yielded_trajectory_is_captured() -> None:
    assert (await capture_yielded_trajectory(run(1.0, 2.0))).reward == 2.0


@pytest.mark.asyncio
async def test_captures_at_once_do_not_mix() -> None:
    captured = await asyncio.gather(*(capture_yielded_trajectory(run(float(n), float(n))) for n in range(5)))
    assert [trajectory.reward for trajectory in captured] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.asyncio
async def test_tasks_inside_yield_to_the_capture() -> None:
    async def outer() -> None:
        await asyncio.create_task(run(3.0))

    assert (await capture_yielded_trajectory(outer())).reward == 3.0


@pytest.mark.asyncio
async def test_inner_capture_keeps_its_trajectory() -> None:
    async def outer() -> None:
        yield_trajectory(make_trajectory(1.0))
        assert (await capture_yielded_trajectory(run(2.0))).reward == 2.0

    assert (await capture_yielded_trajectory(outer())).reward == 1.0


@pytest.mark.asyncio
async def test_nothing_yielded_is_an_error_and_outside_a_capture_nothing_is_kept() -> None:
    yield_trajectory(Trajectory(reward=1.0))
    assert yield_trajectory_context_var.get() is None
    with pytest.raises(RuntimeError, match="yield_trajectory"):
        await capture_yielded_trajectory(run())


@pytest.mark.asyncio
async def test_failure_of_the_coroutine_passes_and_ends_the_capture() -> None:
    async def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await capture_yielded_trajectory(fail())
    assert yield_trajectory_context_var.get() is None
