"""What is noted on groups."""

from __future__ import annotations

import pytest

from art.pipeline_trainer.facts import (
    initial_version,
    is_without_variance,
    mean_reward,
    note_adapter_names,
    note_scenario,
    note_versions,
    steps_off_policy,
)
from tests.support.conversations import make_trajectory
from tests.support.scripted_pipeline import make_group


def test_scalar_metadata_of_the_scenario_is_copied() -> None:
    group = make_group(1.0)
    metadata = {"scenario_id": "a", "level": 3, "tag": None, "list": [1], 7: "number as key"}
    note_scenario(group, {"metadata": metadata})
    assert group.metadata == {"scenario_id": "a", "scenario_level": 3, "scenario_tag": None}
    note_scenario(group, {"metadata": "none"})
    note_scenario(group, "no dict")
    assert len(group.metadata) == 3


def test_versions_that_are_set_are_kept() -> None:
    group = make_group(0.0, 1.0)
    group.trajectories[0].initial_policy_version = 2
    note_versions(group.trajectories, 4, 5)
    assert [(t.initial_policy_version, t.final_policy_version) for t in group] == [(2, 5), (4, 5)]
    assert initial_version(group) == 2
    assert initial_version(make_group(0.0)) is None
    assert steps_off_policy([group, make_group(0.0)], 7) == [5]


def test_names_are_sorted_and_those_that_are_set_are_kept() -> None:
    trajectories = [make_trajectory(), make_trajectory(metadata={"adapter_names": "own"})]
    note_adapter_names(trajectories, {"m@2": 1, "m@1": 5}, default="unused")
    assert [t.metadata["adapter_names"] for t in trajectories] == ["m@1,m@2", "own"]
    trajectory = make_trajectory()
    note_adapter_names([trajectory], {}, default="")
    assert trajectory.metadata == {}


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([], True), ([1.0], True), ([1.0, 1.0], True), ([1.0, 1.0 + 1e-13], True), ([0.0, 0.5], False)],
)
def test_groups_without_variance(rewards: list[float], expected: bool) -> None:
    assert is_without_variance(make_group(*rewards)) is expected


def test_the_mean_reward_is_over_trajectories() -> None:
    assert mean_reward([make_group(0.0, 1.0, 1.0), make_group(0.0)]) == 0.5
    assert mean_reward([]) is None
