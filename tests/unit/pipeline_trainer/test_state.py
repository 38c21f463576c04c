"""What is kept between runs."""

from __future__ import annotations

import logging

import pytest

from art.pipeline_trainer.state import SavedProgress

IN_TRAINING = SavedProgress(
    scenario_offset=9,
    total_scenarios_consumed=12,
    training_step=3,
    last_eval_step=2,
    completed_eval_steps=(0, 2),
    pending_eval_steps=(3,),
    unfinished_offsets=(4, 6, 7, 8),
    batch_step=4,
    batch_offsets=(4, 7),
)


def test_progress_survives_its_stored_form() -> None:
    assert SavedProgress.from_json(IN_TRAINING.to_json()) == IN_TRAINING


def test_what_another_release_stored_is_read() -> None:
    stored = {"scenario_offset": 5, "total_scenarios_consumed": 5, "training_step": 2, "last_eval_step": 1}
    progress = SavedProgress.from_json(stored)
    assert progress == SavedProgress(5, 5, 2, 1)


def test_a_batch_whose_step_exists_was_trained(caplog: pytest.LogCaptureFixture) -> None:
    settled = IN_TRAINING.settled(4)
    assert settled.unfinished_offsets == (6, 8)
    assert (settled.training_step, settled.batch_step, settled.batch_offsets) == (4, None, ())
    assert not caplog.records


def test_a_batch_whose_step_does_not_exist_was_not_trained(caplog: pytest.LogCaptureFixture) -> None:
    settled = IN_TRAINING.settled(3)
    assert settled.unfinished_offsets == (4, 6, 7, 8)
    assert settled.training_step == 3
    assert not caplog.records


@pytest.mark.parametrize("backend_step", [1, 9])
def test_a_backend_elsewhere_wins_with_a_warning(caplog: pytest.LogCaptureFixture, backend_step: int) -> None:
    with caplog.at_level(logging.WARNING):
        assert SavedProgress(training_step=3).settled(backend_step).training_step == backend_step
        assert IN_TRAINING.settled(backend_step).training_step == backend_step
    assert len(caplog.records) == 2
    assert all("step 3" in record.getMessage() for record in caplog.records)
