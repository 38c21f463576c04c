"""A forked model, and one that is registered again, go on from exactly the checkpoint: server, trainer, optimizer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from art.checkpoint_manifest import ParentCheckpoint, read_manifest
from art.checkpoints import checkpoint_dir
from art.errors import ConfigurationError
from art.local import LocalBackend
from tests.support.local_run import fixed_logprobs, make_model, sample, train_step

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


def weights(path: Path, name: str, step: int) -> dict[str, torch.Tensor]:
    folder = checkpoint_dir(path / "project" / "models" / name, step)
    loaded: dict[str, torch.Tensor] = load_file(folder / "adapter_model.safetensors")
    return loaded


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=1e-6, rtol=0)


async def scenario(base: Path, path: Path) -> None:
    async with LocalBackend(path=str(path)) as backend:
        old, new = make_model(base, name="old"), make_model(base, name="new")
        await old.register(backend)
        batches = [await sample(old) for _ in range(3)]
        await train_step(backend, old, batches[0])
        expected = await fixed_logprobs(old)
        await backend._experimental_fork_checkpoint(new, "old")
        await train_step(backend, old, batches[1])

        await new.register(backend)
        assert (new.get_inference_name(), await new.get_step()) == ("new@1", 1)
        assert await fixed_logprobs(new) == pytest.approx(expected, abs=1e-4)
        assert await fixed_logprobs(old) != pytest.approx(expected, abs=1e-2)  # step 2 answers otherwise
        with pytest.raises(ConfigurationError, match="before you register it"):
            await backend._experimental_fork_checkpoint(new, "old")
        result = await train_step(backend, new, batches[1])
        assert (result.step, new.get_inference_name()) == (2, "new@2")
        assert_same(weights(path, "new", 2), weights(path, "old", 2))
        await train_step(backend, new, batches[2])
        for model in (old, new):
            await model.openai_client().close()

    async with LocalBackend(path=str(path)) as backend:
        old = make_model(base, name="old")
        await old.register(backend)
        assert old.get_inference_name() == "old@2"
        await train_step(backend, old, batches[2])
        await old.openai_client().close()
    assert_same(weights(path, "old", 3), weights(path, "new", 3))


def test_forked_and_restarted_runs_do_what_one_without_either_does(tiny_base: Path, tmp_path: Path) -> None:
    asyncio.run(scenario(tiny_base, tmp_path))
    manifest = read_manifest(checkpoint_dir(tmp_path / "project" / "models" / "new", 3))
    assert manifest is not None
    assert manifest.origin.made_by == "rl"
    assert manifest.origin.parent == ParentCheckpoint(2)
    assert manifest.origin.forked_from == ParentCheckpoint(1, "project", "old")
    holders = sorted(file.parent.name for file in tmp_path.rglob("checkpoints/*/trainer_state.pt"))
    assert holders == ["0003", "0003"]
