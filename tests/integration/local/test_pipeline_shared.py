"""A pipeline over `LocalBackend` in shared mode, where rollouts and training alternate."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from art.pipeline_trainer import PipelineTrainer, make_group_rollout_fn
from art.trajectories import Trajectory
from tests.integration.local.conftest import SharedRun
from tests.support.local_run import LEARNING_RATE, PROMPTS, Tiny, rollout

pytestmark = pytest.mark.integration

STEPS = 3


def test_rollouts_wait_while_a_step_is_trained_and_none_is_cut_off(
    shared: SharedRun, caplog: pytest.LogCaptureFixture
) -> None:
    turns = itertools.count()
    reasons: list[str | None] = []

    async def roll_out(model: Tiny, scenario: dict[str, Any], config: Any) -> Trajectory:
        trajectory = await rollout(model, scenario["prompt"], float(next(turns) % 2))
        reasons.append(trajectory.messages_and_choices[-1].finish_reason)  # type: ignore[union-attr]  # a Choice
        return trajectory

    async def evaluate(model: Tiny, step: int, config: Any) -> list[Any]:
        return [await roll_out(model, {"prompt": PROMPTS[0]}, config)]

    first = shared.step
    trainer = PipelineTrainer(
        shared.model,
        shared.backend,
        make_group_rollout_fn(roll_out, n=4),
        itertools.cycle({"prompt": prompt} for prompt in PROMPTS),
        None,
        evaluate,
        num_rollout_workers=3,
        min_batch_size=2,
        max_batch_size=2,
        max_steps=STEPS,
        learning_rate=LEARNING_RATE,
        eval_every_n_steps=2,
        eval_at_start=True,
        stall_timeout_s=120.0,
    )
    shared.loop.run(trainer.train(), 150.0)
    assert trainer.state.policy_version == shared.step == first + STEPS
    assert shared.model.get_inference_name() == f"{shared.model.name}@{first + STEPS}"
    assert trainer.state.completed_eval_steps >= {first, first + 2}
    assert len(reasons) >= STEPS * 2 * 4
    assert set(reasons) == {"length"}
    warnings = [record for record in caplog.records if "rollouts pause while a step is trained" in record.getMessage()]
    assert len(warnings) == 1
