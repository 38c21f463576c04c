"""A run that ends while a step is being trained says truly what became of that step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from art.errors import LocalServingUnavailableError
from art.trajectories import TrajectoryGroup
from tests.support.scripted_pipeline import Model, ScriptedBackend, make_group, read_history, read_progress
from tests.unit.pipeline_trainer.conftest import MakeTrainer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(20)]

EVERYTHING = list(range(8))


async def hang(step: int) -> None:
    if step == 2:
        await asyncio.Event().wait()


async def hang_and_finish(step: int) -> None:
    try:
        await hang(step)
    except asyncio.CancelledError:
        return  # as a backend does that takes the cancellation for its own


def failing_in_step_2(backend: ScriptedBackend, make_trainer: MakeTrainer, *, is_saved: bool) -> Any:
    """Make a trainer whose server is given up while step 2 is being trained, or after it was saved."""

    has_failed = False

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        nonlocal has_failed
        if scenario["offset"] == 4 and not has_failed:
            has_failed = True
            while len(backend.options) < 2 or (is_saved and backend.newest() < 2):
                await asyncio.sleep(0)
            backend.failure = LocalServingUnavailableError("killed by SIGKILL")
            raise ConnectionError("refused")
        return make_group(0.0, 1.0)

    return make_trainer(8, rollout_fn=rollout, num_rollout_workers=1)


async def expect_all_trained_once(backend: ScriptedBackend, make_trainer: MakeTrainer) -> None:
    backend.failure = backend.before_step = backend.after_step = None
    backend.served_step = backend.newest()
    trainer = make_trainer(8, num_rollout_workers=1)
    await trainer.train()
    trained = backend.trained()
    assert sorted(offset for offsets in trained.values() for offset in offsets) == EVERYTHING
    assert trainer.state.policy_version == backend.newest() == len(trained)


async def test_a_step_that_is_cut_off_is_to_be_trained_again(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    backend.before_step = hang
    with caplog.at_level("INFO"), pytest.raises(LocalServingUnavailableError):
        await failing_in_step_2(backend, make_trainer, is_saved=False).train()
    progress = read_progress(model)
    assert (progress["training_step"], progress["batch"]) == (backend.newest(), None) == (1, None)
    assert progress["unfinished_offsets"] == [2, 3, 4]
    assert "while step 2 was being trained: its scenarios will be trained again" in caplog.text
    await expect_all_trained_once(backend, make_trainer)


@pytest.mark.parametrize("is_same_trainer", [False, True])
async def test_a_step_that_was_saved_when_it_was_cut_off_counts_as_trained(
    backend: ScriptedBackend,
    model: Model,
    make_trainer: MakeTrainer,
    caplog: pytest.LogCaptureFixture,
    is_same_trainer: bool,
) -> None:
    backend.after_step = hang
    trainer = failing_in_step_2(backend, make_trainer, is_saved=True)
    with caplog.at_level("INFO"), pytest.raises(LocalServingUnavailableError):
        await trainer.train()
    assert trainer.state.policy_version == 1  # which the server had confirmed
    progress = read_progress(model)
    assert (progress["training_step"], progress["batch"]) == (backend.newest(), None) == (2, None)
    assert progress["unfinished_offsets"] == [4]
    assert "while step 2 was being trained: it is saved" in caplog.text
    caplog.clear()
    if is_same_trainer:
        await expect_all_trained_once(backend, lambda *_, **__: trainer)
    else:
        await expect_all_trained_once(backend, make_trainer)
    assert "going on from the backend's" not in caplog.text


async def test_a_backend_that_finishes_a_cancelled_step_trains_no_further_one(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    backend.before_step = hang_and_finish
    trainer = failing_in_step_2(backend, make_trainer, is_saved=False)
    with pytest.raises(LocalServingUnavailableError):
        await trainer.train()
    progress = read_progress(model)
    assert (progress["training_step"], progress["batch"], backend.newest()) == (2, None, 2)
    assert [row["step"] for row in read_history(model) if "train/reward" in row] == [1, 2]
    await expect_all_trained_once(backend, make_trainer)


async def test_a_step_that_does_not_end_is_left_open_and_found_by_the_next_run(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    async def stay(step: int) -> None:
        while step == 2 and not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    backend.before_step = stay
    with pytest.raises(LocalServingUnavailableError):
        await failing_in_step_2(backend, make_trainer, is_saved=False).train()
    assert "waiting for the step that is being trained to end" in caplog.text
    assert "cancelled, but not ended within" in caplog.text
    progress = read_progress(model)
    assert progress["batch"] == {"step": 2, "offsets": [2, 3]}
    release.set()
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)
    assert backend.newest() == 2
    await expect_all_trained_once(backend, make_trainer)


async def test_a_backend_that_does_not_say_its_step_leaves_it_open(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(model: Model) -> int:
        raise OSError("the disk is gone")

    async def fail_later(step: int) -> None:
        if step == 2:
            monkeypatch.setattr(backend, "_get_step", fail)
            raise MemoryError("no room")

    backend.before_step = fail_later
    with pytest.raises(MemoryError, match="no room"):
        await make_trainer(8, num_rollout_workers=1).train()
    assert read_progress(model)["batch"]["step"] == 2
    monkeypatch.undo()
    await expect_all_trained_once(backend, make_trainer)


async def test_a_run_begins_with_the_newest_step_served(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    asked_for: list[str] = []

    async def serve_newest(model: Model) -> None:
        backend.served_step = backend.newest()

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        asked_for.append(model.get_inference_name())
        return make_group(0.0, 1.0)

    await backend.train(model, [])
    backend.served_step = 0
    backend.serve_newest = serve_newest  # type: ignore[attr-defined]
    backend.adapter_lease = None  # type: ignore[assignment,method-assign]
    await make_trainer(2, rollout_fn=rollout).train()
    assert asked_for == ["agent@1", "agent@1"]
