"""A rollout run several times is a group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from art.errors import LocalServingUnavailableError
from art.pipeline_trainer import make_group_rollout_fn
from art.trajectories import Trajectory
from tests.support.conversations import make_trajectory

pytestmark = pytest.mark.asyncio


async def call(rollout: Any) -> Any:
    return await rollout(None, {"offset": 1}, {"limit": 2})


async def test_rollouts_run_at_once_and_failures_are_kept() -> None:
    running: list[int] = []
    all_run = asyncio.Event()

    async def single(model: Any, scenario: Any, config: Any) -> Trajectory:
        running.append(1)
        if len(running) == 4:
            all_run.set()
        await all_run.wait()
        if len(running) % 2 == 0:
            running.append(1)
            raise KeyError("lost")
        return make_trajectory(1.0)

    group = await call(make_group_rollout_fn(single))
    assert (len(group.trajectories), len(group.exceptions)) == (3, 1)
    assert group.exceptions[0].type == "<class 'KeyError'>"


async def test_no_rollouts_make_an_empty_group() -> None:
    group = await call(make_group_rollout_fn(make_trajectory, n=0))  # type: ignore[arg-type]  # never called
    assert (group.trajectories, group.exceptions) == ([], [])


async def test_what_is_no_trajectory_is_a_failure() -> None:
    async def single(model: Any, scenario: Any, config: Any) -> Any:
        return 7

    group = await call(make_group_rollout_fn(single, n=1))
    assert "returned a int" in group.exceptions[0].message


async def test_a_server_that_is_gone_is_raised() -> None:
    async def single(model: Any, scenario: Any, config: Any) -> Trajectory:
        raise ConnectionError("refused") from LocalServingUnavailableError("killed by SIGKILL")

    with pytest.raises(LocalServingUnavailableError, match="SIGKILL"):
        await call(make_group_rollout_fn(single))
