"""What a trainer accepts."""

from __future__ import annotations

from typing import Any

import pytest

from art.pipeline_trainer import PipelineTrainer
from tests.unit.pipeline_trainer.conftest import MakeTrainer


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_rollout_workers", 0),
        ("min_batch_size", 0),
        ("max_batch_size", 0),
        ("queue_maxsize", 0),
        ("discard_queue_multiplier", 0),
        ("log_interval_seconds", 0.0),
        ("checkpoint_retention_interval", 0),
        ("stall_timeout_s", 0.0),
        ("rollout_timeout_s", -1.0),
        ("max_failed_groups", 0),
        ("max_scenario_attempts", 0),
        ("max_steps_off_policy", -1),
        ("eval_every_n_steps", -1),
        ("max_steps", -1),
        ("status_ewa_alpha", 0.0),
        ("status_ewa_alpha", 1.5),
        ("total_scenarios", -1),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(make_trainer: MakeTrainer, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        make_trainer(**{name: value})


def test_a_largest_batch_below_the_smallest_is_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="max_batch_size=3 is less than min_batch_size=4"):
        make_trainer(min_batch_size=4, max_batch_size=3)


def test_defaults_follow_from_the_smallest_batch(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(min_batch_size=3, max_batch_size=None, max_steps_off_policy=2, num_rollout_workers=16)
    assert trainer.max_batch_size == 30
    assert trainer.queue_maxsize == 60
    assert trainer.max_failed_groups == 32
    assert make_trainer(max_steps_off_policy=0).queue_maxsize == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (True, False)),
        ({"eval_step_0": True}, (True, False)),
        ({"eval_step_0": False}, (False, False)),
        ({"eval_at_start": True}, (True, True)),
        ({"eval_at_start": False}, (False, False)),
        ({"eval_at_start": True, "eval_step_0": True}, (True, True)),
    ],
)
def test_both_spellings_of_the_first_evaluation(
    make_trainer: MakeTrainer, given: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    trainer = make_trainer(**given)
    assert (trainer.eval_step_0, trainer.eval_at_start) == expected


def test_spellings_that_disagree_are_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="eval_step_0=True contradicts eval_at_start=False"):
        make_trainer(eval_step_0=True, eval_at_start=False)


def test_attributes_have_the_names_of_the_keywords(make_trainer: MakeTrainer) -> None:
    trainer: PipelineTrainer[Any, Any] = make_trainer(learning_rate=0.5, loss_fn="ppo", max_steps=7)
    assert (trainer.learning_rate, trainer.loss_fn, trainer.max_steps) == (0.5, "ppo", 7)
    assert trainer.state.policy_version == 0
    assert not trainer.collapsed
