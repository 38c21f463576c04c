"""What is noted on groups: where they come from, which versions and names answered them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeGuard

from art.metrics_taxonomy import have_distinct_rewards
from art.pipeline_trainer.types import ScalarMetadataValue
from art.trajectories import Trajectory, TrajectoryGroup

ADAPTER_NAMES_KEY = "adapter_names"


@dataclass(frozen=True)
class FinishedGroup:
    """A group with what its rollout took, on its way to the trainer.

    Attributes:
        offset: Which scenario it is of.
        group: The group.
        rollout_s: Seconds that the rollout took.
        idle_s: Seconds that its worker waited, for the trainer, since its last rollout.
    """

    offset: int
    group: TrajectoryGroup = field(repr=False)
    rollout_s: float = 0.0
    idle_s: float = 0.0


def note_scenario(group: TrajectoryGroup, scenario: Any) -> None:
    """Copy the scalar values of a scenario's `metadata` into the group's, as `scenario_…`."""
    metadata = scenario.get("metadata") if isinstance(scenario, dict) else None
    if not isinstance(metadata, dict):
        return
    for key, value in metadata.items():
        if isinstance(key, str) and is_scalar(value):
            group.metadata[key if key == "scenario_id" else f"scenario_{key}"] = value


def note_versions(trajectories: Iterable[Trajectory], initial: int, final: int) -> None:
    """Set the versions that trajectories began and ended with, where they are not set."""
    for trajectory in trajectories:
        if trajectory.initial_policy_version is None:
            trajectory.initial_policy_version = initial
        if trajectory.final_policy_version is None:
            trajectory.final_policy_version = final


def note_adapter_names(trajectories: Iterable[Trajectory], answers: Mapping[str, int], default: str = "") -> None:
    """Set which names answered trajectories, where that is not set: sorted, with commas between."""
    names = ",".join(sorted(answers)) or default
    for trajectory in trajectories:
        if names:
            trajectory.metadata.setdefault(ADAPTER_NAMES_KEY, names)


def initial_version(group: TrajectoryGroup) -> int | None:
    """Give the oldest version that a trajectory of the group began with; None where none says."""
    versions = [t.initial_policy_version for t in group.trajectories if t.initial_policy_version is not None]
    return min(versions, default=None)


def is_without_variance(group: TrajectoryGroup) -> bool:
    """Tell whether there is nothing to learn from a group: fewer than two trajectories, or equal rewards."""
    return not have_distinct_rewards([trajectory.reward for trajectory in group.trajectories])


def mean_reward(groups: Iterable[TrajectoryGroup]) -> float | None:
    """Give the mean reward over all trajectories; None where there are none."""
    rewards = [trajectory.reward for group in groups for trajectory in group.trajectories]
    return fmean(rewards) if rewards else None


def steps_off_policy(groups: Iterable[TrajectoryGroup], new_step: int) -> list[int]:
    """Give, for each group that says, how many steps lie between its oldest version and the step it led to."""
    return [new_step - version for group in groups if (version := initial_version(group)) is not None]


def is_scalar(value: object) -> TypeGuard[ScalarMetadataValue]:
    """Tell whether a value can be metadata."""
    return value is None or isinstance(value, float | int | str | bool)
