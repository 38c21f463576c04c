"""What a batch of trajectory groups consists of, as metrics. Pure functions over trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from art.errors import DataError
from art.trajectories import TrajectoryGroup

TRAIN_GRADIENT_STEPS_KEY = "data/step_num_gradient_steps"
SCENARIO_ID_KEY = "scenario_id"
# Rewards that differ by less than this, relative to the largest (at least 1), differ by float noise only.
REWARD_TOLERANCE = 1e-12


@dataclass(frozen=True)
class TrajectoryBatchSummary:
    """Counts of a batch.

    Attributes:
        num_scenarios: Scenarios, one for each group.
        num_trajectories: Rollouts, failed ones included.
        num_groups_submitted: Groups.
        num_groups_trainable: Groups whose rewards differ.
        scenario_ids: Ids of the groups that have one.
    """

    num_scenarios: int
    num_trajectories: int
    num_groups_submitted: int
    num_groups_trainable: int
    scenario_ids: list[str]


def average_metric_samples(metric_samples: Iterable[dict[str, float]]) -> dict[str, float]:
    """Average each metric over the samples that have it.

    The number of gradient steps is the same in all samples and is kept as it is.

    Raises:
        DataError: Samples differ in their number of gradient steps.
    """
    values: dict[str, list[float]] = {}
    for sample in metric_samples:
        for key, value in sample.items():
            values.setdefault(key, []).append(float(value))
    step_counts = values.pop(TRAIN_GRADIENT_STEPS_KEY, [])
    if len(set(step_counts)) > 1:
        raise DataError(
            f"{TRAIN_GRADIENT_STEPS_KEY} differs between the samples of one step: {sorted(set(step_counts))}"
        )
    averages = {key: sum(samples) / len(samples) for key, samples in values.items()}
    if step_counts:
        averages[TRAIN_GRADIENT_STEPS_KEY] = step_counts[0]
    return averages


def have_distinct_rewards(rewards: Sequence[float]) -> bool:
    """Tell whether there are at least two rewards that differ by more than float noise."""
    if len(rewards) < 2:
        return False
    mean = sum(rewards) / len(rewards)
    noise = REWARD_TOLERANCE * max(1.0, *(abs(reward) for reward in rewards))
    return any(not abs(reward - mean) <= noise for reward in rewards)


def summarize_trajectory_groups(trajectory_groups: Iterable[TrajectoryGroup]) -> TrajectoryBatchSummary:
    """Count what a batch consists of."""
    groups = list(trajectory_groups)
    scenario_ids = [scenario_id for scenario_id in map(_scenario_id, groups) if scenario_id is not None]
    return TrajectoryBatchSummary(
        num_scenarios=len(groups),
        num_trajectories=sum(len(group.trajectories) + len(group.exceptions) for group in groups),
        num_groups_submitted=len(groups),
        num_groups_trainable=sum(have_distinct_rewards([t.reward for t in group.trajectories]) for group in groups),
        scenario_ids=scenario_ids,
    )


def build_data_metrics_from_summary(
    summary: TrajectoryBatchSummary, *, include_trainable_groups: bool
) -> dict[str, float]:
    """Give a batch's counts as metrics; the number of trainable groups only if asked for."""
    metrics = {
        "data/step_num_scenarios": float(summary.num_scenarios),
        "data/step_num_trajectories": float(summary.num_trajectories),
        "data/step_num_groups_submitted": float(summary.num_groups_submitted),
    }
    if include_trainable_groups:
        metrics["data/step_num_groups_trainable"] = float(summary.num_groups_trainable)
    return metrics


def build_training_summary_metrics(
    summary: TrajectoryBatchSummary, *, include_trainable_groups: bool
) -> dict[str, float]:
    """Give a batch's counts as metrics of a training step."""
    return build_data_metrics_from_summary(summary, include_trainable_groups=include_trainable_groups)


def _scenario_id(group: TrajectoryGroup) -> str | None:
    for metadata in (group.metadata, *(trajectory.metadata for trajectory in group.trajectories)):
        scenario_id = metadata.get(SCENARIO_ID_KEY)
        if scenario_id is not None:
            return str(scenario_id)
    return None
