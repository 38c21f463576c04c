"""A pipeline on a forked model starts from exactly the checkpoint that was forked, in trainer and server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from art.checkpoint_manifest import ParentCheckpoint, read_manifest
from art.checkpoints import checkpoint_dir, list_steps
from art.local import LocalBackend
from art.utils.trajectory_logging import read_trajectory_groups_parquet
from tests.integration.conftest import TinyModel
from tests.integration.pipeline.test_dedicated_pipeline import Model, make_model, make_trainer
from tests.support.local_run import fixed_logprobs
from tests.support.scripted_pipeline import read_history

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

FORKED_STEP = 2


def weights(model: Model, step: int) -> dict[str, torch.Tensor]:
    folder = checkpoint_dir(Path(model._get_output_dir()), step)
    loaded: dict[str, torch.Tensor] = load_file(folder / "adapter_model.safetensors")
    return loaded


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


async def test_trainer_and_server_start_from_the_forked_checkpoint(tiny: TinyModel, tmp_path: Path) -> None:
    old, new = make_model(tiny, "old"), make_model(tiny, "new")
    async with LocalBackend(path=str(tmp_path)) as backend:
        await old.register(backend)
        async with old.openai_client():
            await make_trainer(old, backend, eval_fn=None, max_steps=FORKED_STEP + 1).train()
            expected = await fixed_logprobs(old, f"old@{FORKED_STEP}")
            assert await fixed_logprobs(old) != pytest.approx(expected, abs=1e-3)  # the next step answers otherwise

    async with LocalBackend(path=str(tmp_path)) as backend:
        await backend._experimental_fork_checkpoint(new, "old", not_after_step=FORKED_STEP)
        await new.register(backend)
        seen: list[list[float]] = []

        async def evaluate(model: Model, step: int, config: Any) -> list[Any]:
            seen.append(await fixed_logprobs(model))
            return []

        # A step at this rate changes no weight, so that what it saves is what the trainer began with.
        trainer = make_trainer(new, backend, eval_fn=evaluate, eval_at_start=True, max_steps=1, learning_rate=1e-30)
        async with new.openai_client():
            await trainer.train()
        assert trainer.state.completed_eval_steps == {FORKED_STEP}
        assert seen == [pytest.approx(expected, abs=1e-4)]  # the server's start
        assert trainer.state.policy_version == FORKED_STEP + 1
        assert new.get_inference_name() == f"new@{FORKED_STEP + 1}"

    model_dir = Path(new._get_output_dir())
    assert list_steps(model_dir) == [FORKED_STEP, FORKED_STEP + 1]
    assert not are_equal(weights(old, FORKED_STEP), weights(old, FORKED_STEP + 1))
    assert are_equal(weights(new, FORKED_STEP), weights(old, FORKED_STEP))
    assert are_equal(weights(new, FORKED_STEP + 1), weights(old, FORKED_STEP))  # the trainer's start
    manifest = read_manifest(checkpoint_dir(model_dir, FORKED_STEP + 1))
    assert manifest is not None
    assert manifest.origin.forked_from == ParentCheckpoint(FORKED_STEP, "pipeline", "old")
    groups = read_trajectory_groups_parquet(model_dir / "trajectories" / "train" / f"{FORKED_STEP + 1:04d}.parquet")
    assert {t.initial_policy_version for group in groups for t in group} == {FORKED_STEP}
    assert {t.metadata["adapter_names"] for group in groups for t in group} == {f"new@{FORKED_STEP}"}
    rows = [row for row in read_history(new) if "train/sync/logprob_gap" in row]
    assert [row["step"] for row in rows] == [FORKED_STEP + 1]
    assert rows[0]["train/sync/logprob_gap"] < 1e-4
    assert rows[0]["loss/probs_corr"] == pytest.approx(1.0, abs=1e-3)  # trainer and server agree about the rollouts
