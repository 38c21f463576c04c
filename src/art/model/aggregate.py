"""Averages over trajectory groups. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from art.model.training_input import number_of
from art.trajectories import TrajectoryGroup
from art.utils.mean import mean
from art.utils.old_benchmarking.calculate_step_metrics import calculate_step_std_dev

TakeSums = Callable[[Mapping[str, Any]], dict[str, float]]


def average_groups(groups: list[TrajectoryGroup], take_sums: TakeSums) -> dict[str, float]:
    """Average rewards and metrics.

    Args:
        groups: The groups, empty ones included.
        take_sums: Called with the metrics of every trajectory and group; gives those that are to be averaged.

    Returns:
        `reward` over all trajectories, `exception_rate` over all rollouts, `reward_std_dev`, each metric over the
        trajectories that have it, and `group_{metric}` over the groups that have trajectories and it. An average
        over nothing is left out.
    """
    values: dict[str, list[float]] = {}
    group_values: dict[str, list[float]] = {}
    rewards = []
    for group in groups:
        for trajectory in group.trajectories:
            rewards.append(number_of("a trajectory's reward", trajectory.reward))
            for key, value in take_sums(trajectory.metrics).items():
                values.setdefault(key, []).append(value)
        averaged = take_sums(group.metrics)
        for key, value in averaged.items() if group.trajectories else ():
            group_values.setdefault(f"group_{key}", []).append(value)
    averages = {key: mean(found) for key, found in (values | group_values).items()}
    failures = sum(len(group.exceptions) for group in groups)
    if rewards:
        averages["reward"] = mean(rewards)
    if rewards or failures:
        averages["exception_rate"] = failures / (len(rewards) + failures)
    if groups:
        averages["reward_std_dev"] = calculate_step_std_dev(groups)
    return averages
