"""What a batch consists of."""

from __future__ import annotations

import pytest

from art.metrics_taxonomy import (
    TrajectoryBatchSummary,
    average_metric_samples,
    build_data_metrics_from_summary,
    build_training_summary_metrics,
    summarize_trajectory_groups,
)
from art.trajectories import TrajectoryGroup
from tests.support.conversations import make_trajectory


def test_samples_are_averaged_over_those_that_have_the_metric() -> None:
    samples = [{"loss/train": 1.0, "a": 4.0, "data/step_num_gradient_steps": 2.0}, {"loss/train": 3.0}]
    assert average_metric_samples(samples) == {"loss/train": 2.0, "a": 4.0, "data/step_num_gradient_steps": 2.0}
    assert average_metric_samples([]) == {}


def test_gradient_steps_must_agree() -> None:
    with pytest.raises(ValueError, match="num_gradient_steps"):
        average_metric_samples([{"data/step_num_gradient_steps": 2.0}, {"data/step_num_gradient_steps": 3.0}])


def test_summary_counts_failures_and_trainable_groups() -> None:
    groups = [
        TrajectoryGroup([make_trajectory(0.0), make_trajectory(1.0)], metadata={"scenario_id": "s1"}),
        TrajectoryGroup([make_trajectory(0.7) for _ in range(6)]),
        TrajectoryGroup([make_trajectory(1.0, metadata={"scenario_id": 7})], exceptions=[ValueError("failed")]),
        TrajectoryGroup([ValueError("failed")]),
    ]
    summary = summarize_trajectory_groups(groups)
    assert summary == TrajectoryBatchSummary(
        num_scenarios=4, num_trajectories=11, num_groups_submitted=4, num_groups_trainable=1, scenario_ids=["s1", "7"]
    )
    assert build_data_metrics_from_summary(summary, include_trainable_groups=False) == {
        "data/step_num_scenarios": 4.0,
        "data/step_num_trajectories": 11.0,
        "data/step_num_groups_submitted": 4.0,
    }
    trainable = build_training_summary_metrics(summary, include_trainable_groups=True)
    assert trainable["data/step_num_groups_trainable"] == 1.0


def test_float_noise_makes_no_group_trainable() -> None:
    noisy = TrajectoryGroup([make_trajectory(0.1 + 0.2), make_trajectory(0.3)])
    assert summarize_trajectory_groups([noisy]).num_groups_trainable == 0


def test_undefined_reward_counts_as_a_difference() -> None:
    broken = TrajectoryGroup([make_trajectory(float("nan")), make_trajectory(0.3)])
    assert summarize_trajectory_groups([broken]).num_groups_trainable == 1
