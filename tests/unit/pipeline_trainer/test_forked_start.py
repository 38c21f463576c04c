"""A pipeline on a forked model begins with the forked checkpoint, and with nothing else of its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from art.checkpoint_manifest import ParentCheckpoint
from art.checkpoints import checkpoint_dir, newest_step
from art.local.fork import fork_local
from art.pipeline_trainer import PipelineTrainer
from art.trajectories import TrajectoryGroup
from tests.support.scripted_pipeline import (
    Model,
    ScriptedBackend,
    make_group,
    make_scenarios,
    read_progress,
    register,
    roll_out,
)
from tests.support.tiny_checkpoints import save_checkpoint

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(20)]

FORKED_STEP = 30


class ForkedBackend(ScriptedBackend):
    """Goes on from the checkpoints in a model's folder."""

    def __init__(self, folder: Path, model_dir: Path) -> None:
        self.model_dir = model_dir
        super().__init__(folder)

    def newest(self) -> int:
        return max(super().newest(), newest_step(self.model_dir) or 0)


async def test_a_fork_begins_with_its_checkpoint_and_its_first_step_is_the_next(tmp_path: Path) -> None:
    source = ScriptedBackend(tmp_path / "source")
    old = await register(source, "old")
    await PipelineTrainer(old, source, roll_out, make_scenarios(4), None, min_batch_size=2, max_batch_size=2).train()
    for step in (2, FORKED_STEP, FORKED_STEP + 1):
        save_checkpoint(Path(old._get_output_dir()), step, value=step)
    target = tmp_path / "fork/pipeline/models/new"
    fork_local(
        checkpoint_dir(Path(old._get_output_dir()), FORKED_STEP),
        target,
        ParentCheckpoint(FORKED_STEP, "p", "old"),
        None,
    )
    backend = ForkedBackend(tmp_path / "fork", target)
    new = await register(backend, "new")
    assert Path(new._get_output_dir()) == target
    evaluated: list[str] = []

    async def rollout(model: Model, scenario: Any, config: Any) -> TrajectoryGroup:
        names.append(model.get_inference_name())
        return make_group(0.0, 1.0)

    async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
        evaluated.append(model.get_inference_name())
        return []

    names: list[str] = []
    trainer = PipelineTrainer(
        new,
        backend,
        rollout,
        make_scenarios(4),
        None,
        evaluate,
        eval_at_start=True,
        num_rollout_workers=1,
        min_batch_size=2,
        max_batch_size=2,
    )
    await trainer.train()
    assert names[:2] == ["new@30", "new@30"]
    assert evaluated[0] == "new@30"
    assert backend.trained() == {31: [0, 1], 32: [2, 3]}  # its scenarios begin anew
    assert trainer.state.policy_version == read_progress(new)["training_step"] == 32
