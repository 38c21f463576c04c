"""Runs that fail, are stopped or are cancelled at random moments, one after the other in one process."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from art.errors import LocalServingUnavailableError
from art.pipeline_trainer import PipelineTrainer
from art.pipeline_trainer.state import SavedProgress
from art.trajectories import Trajectory, TrajectoryGroup
from tests.support.scripted_pipeline import (
    Model,
    ScriptedBackend,
    make_group,
    make_scenarios,
    read_progress,
    register,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

SCENARIOS = 150
RUNS = 40
FAULTS = [
    "rollout fails",
    "rollout cancels itself",
    "rollout gives no group",
    "rollout hangs",
    "server is given up",
    "step fails before it is saved",
    "step fails after it is saved",
    "evaluation fails",
    "stop",
    "cancelled",
    "nothing",
]


class Saboteur:
    """Injects one fault, at its n-th occasion."""

    def __init__(self, dice: random.Random) -> None:
        self.fault = dice.choice(FAULTS)
        self._dice = dice
        self._occasions_left = dice.randrange(1, 3 if self.fault.startswith(("step", "evaluation")) else 8)

    def strikes(self, fault: str) -> bool:
        """Tell whether it is time for the fault."""
        if fault != self.fault:
            return False
        self._occasions_left -= 1
        return self._occasions_left == 0

    async def pause(self) -> None:
        """Let others go first for a random while."""
        for _ in range(self._dice.randrange(40)):
            await asyncio.sleep(0)


def make_trainer(
    model: Model, backend: ScriptedBackend, saboteur: Saboteur, dice: random.Random
) -> PipelineTrainer[Any, Any]:
    """Make a trainer of random size into which the saboteur has been let."""

    async def rollout(model: Model, scenario: dict[str, Any], config: Any) -> Any:
        await saboteur.pause()
        if saboteur.strikes("rollout fails"):
            raise ValueError("this time")
        if saboteur.strikes("rollout cancels itself"):
            raise asyncio.CancelledError
        if saboteur.strikes("rollout gives no group"):
            return None
        if saboteur.strikes("rollout hangs"):
            await asyncio.Event().wait()
        if saboteur.strikes("server is given up"):
            backend.failure = LocalServingUnavailableError("gone")
            raise ConnectionError("refused")
        if saboteur.strikes("stop"):
            trainer.request_stop()
        if saboteur.strikes("cancelled"):
            assert trainer._task is not None
            trainer._task.cancel()
        return make_group(0.0, 1.0)

    async def before_step(step: int) -> None:
        await saboteur.pause()
        if saboteur.strikes("step fails before it is saved"):
            raise MemoryError("no room")

    async def after_step(step: int) -> None:
        await saboteur.pause()
        if saboteur.strikes("step fails after it is saved"):
            raise RuntimeError("not served")

    async def evaluate(model: Model, step: int, config: Any) -> list[Trajectory | TrajectoryGroup]:
        await saboteur.pause()
        if saboteur.strikes("evaluation fails"):
            raise KeyError("lost")
        return []

    backend.before_step, backend.after_step = before_step, after_step
    min_batch_size = dice.randrange(1, 4)
    trainer: PipelineTrainer[Any, Any] = PipelineTrainer(
        model,
        backend,
        rollout,
        make_scenarios(SCENARIOS),
        None,
        evaluate,
        num_rollout_workers=dice.randrange(1, 6),
        min_batch_size=min_batch_size,
        max_batch_size=min_batch_size + dice.randrange(3),
        max_steps_off_policy=SCENARIOS,  # so that nothing goes stale: each scenario is trained, once
        queue_maxsize=dice.randrange(1, 8),
        eval_every_n_steps=3,
        max_steps=dice.choice([2, 5, None]),
        max_scenario_attempts=100,
        rollout_timeout_s=1.0,
    )
    return trainer


def check(model: Model, backend: ScriptedBackend) -> None:
    """Check that the state accounts for every scenario and agrees with the newest step."""
    trained = [offset for offsets in backend.trained().values() for offset in offsets]
    assert len(trained) == len(set(trained))
    progress = SavedProgress.from_json(read_progress(model))
    assert (progress.training_step, progress.batch_step) == (backend.newest(), None)
    assert sorted([*trained, *progress.unfinished_offsets]) == list(range(progress.scenario_offset))
    assert not any(backend.leases.values())


async def test_every_run_leaves_a_state_that_is_true_and_no_task(tmp_path: Path) -> None:
    seed = int(os.environ.get("ART_TEST_SEED") or time.time_ns() % 1_000_000)
    sys.stdout.write(f"ART_TEST_SEED={seed}\n")
    dice = random.Random(seed)
    backend = ScriptedBackend(tmp_path)
    model = await register(backend)
    tasks = asyncio.all_tasks()
    for number in range(RUNS):
        backend.failure = None
        saboteur = Saboteur(dice)
        sys.stdout.write(f"run {number} at step {backend.newest()}: {saboteur.fault}\n")
        run = asyncio.create_task(make_trainer(model, backend, saboteur, dice).train(handle_signals=False))
        await asyncio.wait([run])
        error = None if run.cancelled() else run.exception()
        assert error is None or isinstance(error, LocalServingUnavailableError | MemoryError | RuntimeError)
        assert asyncio.all_tasks() == tasks
        check(model, backend)
