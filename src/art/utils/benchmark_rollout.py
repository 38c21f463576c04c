"""Measure a model by its mean reward."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from art.gather import gather_trajectory_groups
from art.trajectories import Trajectory, TrajectoryGroup


async def benchmark_rollout(
    model: str,
    num_rollouts: int,
    rollout: Callable[[str, int, bool], Coroutine[Any, Any, Trajectory]],
) -> float:
    """Run `rollout(model, i, False)` for every i below `num_rollouts` at once.

    Returns:
        The mean reward; NaN without rollouts.
    """
    groups = await gather_trajectory_groups(
        [TrajectoryGroup(rollout(model, index, False) for index in range(num_rollouts))],
        pbar_desc="Benchmarking rollout",
    )
    rewards = [trajectory.reward for group in groups for trajectory in group]
    return sum(rewards) / len(rewards) if rewards else float("nan")
