"""Evaluations of a pipeline."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from art.errors import LocalServingUnavailableError
from art.metrics import MetricsBuilder
from art.trajectories import Trajectory
from tests.support.conversations import make_trajectory
from tests.support.scripted_pipeline import Model, ScriptedBackend, make_group, read_history, read_progress
from tests.unit.pipeline_trainer.conftest import MakeTrainer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(20)]


async def test_steps_are_evaluated_when_due_one_at_a_time_under_their_own_name(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    running: list[int] = []
    seen: list[tuple[int, str, str]] = []
    trained = asyncio.Event()

    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        running.append(step)
        assert running == [step]
        await trained.wait()  # all steps are trained while the first evaluation runs
        seen.append((step, model.get_inference_name(), MetricsBuilder.get_active().cost_context))
        assert model.get_inference_name(step) == f"agent@{step}"
        running.clear()
        return [make_trajectory(float(step))]

    async def after_step(step: int) -> None:
        if step == 6:
            trained.set()
            assert {step for step, count in backend.leases.items() if count} >= {0, 2, 4}  # waiting ones are held too

    backend.after_step = after_step
    trainer = make_trainer(12, eval_fn=evaluate, eval_every_n_steps=2, num_rollout_workers=1)
    await trainer.train()
    assert seen == [(step, f"agent@{step}", "eval") for step in (0, 2, 4, 6)]
    rows = [row for row in read_history(model) if "val/reward" in row]
    assert [(row["step"], row["val/reward"]) for row in rows] == [(0, 0.0), (2, 2.0), (4, 4.0), (6, 6.0)]
    assert all(row["time/step_eval_s"] >= 0 for row in rows)
    assert read_progress(model)["completed_eval_steps"] == [0, 2, 4, 6]
    assert read_progress(model)["last_eval_step"] == 6
    assert set(backend.leases.values()) == {0}


async def test_splits_and_loose_trajectories(model: Model, make_trainer: MakeTrainer) -> None:
    loose: list[Trajectory] = [make_trajectory(1.0), make_trajectory(0.0)]

    async def evaluate(model: Model, step: int, config: Any) -> dict[str, Any]:
        return {"val": [make_group(0.5), *loose], "hard": [make_group(0.25)], "empty": []}

    await make_trainer(2, eval_fn=evaluate).train()
    rows = [row for row in read_history(model) if row["step"] == 0]
    assert [row["val/reward"] for row in rows if "val/reward" in row] == [0.5]
    assert [row["hard/reward"] for row in rows if "hard/reward" in row] == [0.25]
    assert len([row for row in rows if "time/step_eval_s" in row]) == 1
    assert [(t.initial_policy_version, t.metadata["adapter_names"]) for t in loose] == [(0, "agent@0")] * 2


async def test_an_evaluation_without_results_tells_its_time(model: Model, make_trainer: MakeTrainer) -> None:
    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        return []

    await make_trainer(2, eval_fn=evaluate).train()
    assert [row["step"] for row in read_history(model) if "time/step_eval_s" in row] == [0]


@pytest.mark.parametrize("failure", [KeyError("lost"), asyncio.CancelledError(), "no list"])
async def test_a_failed_evaluation_is_recorded_and_the_run_goes_on(
    backend: ScriptedBackend,
    model: Model,
    make_trainer: MakeTrainer,
    caplog: pytest.LogCaptureFixture,
    failure: Any,
) -> None:
    async def evaluate(model: Model, step: int, config: Any) -> Any:
        if step == 2:
            if isinstance(failure, BaseException):
                raise failure
            return failure
        return [make_trajectory(1.0)]

    await make_trainer(8, eval_fn=evaluate, eval_every_n_steps=2, num_rollout_workers=1).train()
    rows = read_history(model)
    assert [(row["step"], row["val/eval_failed"]) for row in rows if "val/eval_failed" in row] == [(2, 1.0)]
    assert [row["step"] for row in rows if "val/reward" in row] == [0, 4]
    assert "evaluation failed: step=2" in caplog.text
    assert read_progress(model)["completed_eval_steps"] == [0, 4]
    assert read_progress(model)["pending_eval_steps"] == []
    assert backend.newest() == 4


async def test_a_server_that_is_gone_during_an_evaluation_ends_the_run(model: Model, make_trainer: MakeTrainer) -> None:
    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        raise ConnectionError("refused") from LocalServingUnavailableError("killed by SIGKILL")

    with pytest.raises(LocalServingUnavailableError, match="SIGKILL"):
        await make_trainer(8, eval_fn=evaluate).train()
    assert read_progress(model)["pending_eval_steps"] == [0]


@pytest.mark.parametrize(
    ("settings", "at_first", "at_second"),
    [
        ({}, [0], []),
        ({"eval_step_0": False}, [], []),
        ({"eval_at_start": True}, [0], [2]),
        ({"eval_at_start": False}, [], []),
    ],
)
async def test_the_step_that_a_run_starts_from(
    backend: ScriptedBackend,
    model: Model,
    make_trainer: MakeTrainer,
    settings: dict[str, bool],
    at_first: list[int],
    at_second: list[int],
) -> None:
    evaluated: list[int] = []

    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        evaluated.append(step)
        return []

    for expected in (at_first, at_second):
        evaluated.clear()
        await make_trainer(8, eval_fn=evaluate, eval_every_n_steps=0, max_steps=2, **settings).train()
        assert evaluated == expected
    evaluated.clear()
    await make_trainer(8, eval_fn=evaluate, eval_every_n_steps=0, max_steps=0, eval_at_start=True).train()
    await make_trainer(8, eval_fn=evaluate, eval_every_n_steps=0, max_steps=0, eval_at_start=True).train()
    assert evaluated == [4]  # and it is evaluated once


async def test_evaluations_that_were_cut_off_run_after_a_resume(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    evaluated: list[int] = []
    is_running = asyncio.Event()

    async def hang(model: Model, step: int, config: Any) -> list[Any]:
        is_running.set()
        await asyncio.Event().wait()
        return []

    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        evaluated.append(step)
        return []

    run = asyncio.create_task(make_trainer(8, eval_fn=hang, eval_every_n_steps=2, max_steps=2).train())
    await is_running.wait()
    while not read_progress_or_none(model) or read_progress(model)["pending_eval_steps"] != [0, 2]:
        await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert read_progress(model)["pending_eval_steps"] == [0, 2]
    await make_trainer(8, eval_fn=evaluate, eval_every_n_steps=2).train()
    assert evaluated == [0, 2, 4]
    assert read_progress(model)["completed_eval_steps"] == [0, 2, 4]


async def test_an_evaluation_that_was_due_when_the_process_was_killed_is_made_up_for(
    backend: ScriptedBackend, model: Model, make_trainer: MakeTrainer
) -> None:
    evaluated: list[int] = []

    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        evaluated.append(step)
        return []

    await make_trainer(4, eval_fn=evaluate, eval_every_n_steps=3).train()
    assert evaluated == [0]
    await backend.train(model, [])  # step 3, of which the state knows nothing
    await make_trainer(8, eval_fn=evaluate, eval_every_n_steps=3).train()
    assert evaluated[:2] == [0, 3]


def read_progress_or_none(model: Model) -> Any:
    return (model.read_state() or {}).get("_pipeline_trainer")
