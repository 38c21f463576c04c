"""A worker that is ended and started again goes on as if it had never stopped."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from art.checkpoint_manifest import Origin, ParentCheckpoint, read_manifest
from art.checkpoints import checkpoint_dir, list_steps, next_step
from art.dev.get_model_config import get_model_config
from art.dev.settings import TrainSettings
from art.errors import CheckpointIncompleteError
from art.preprocessing.sft_store import StoredSFTBatches, make_store
from art.trajectories import Trajectory, TrajectoryGroup
from art.unsloth.worker import TrainerWorker

# Dropout makes what is trained depend on torch's random generator, the rows' order on the worker's.
DROPOUT = {"peft_args": {"r": 4, "lora_dropout": 0.2, "random_state": 11}}
SETTINGS = TrainSettings(learning_rate=1e-2, allow_training_without_logprobs=True, packed_sequence_length=32)

MakeWorker = Callable[..., TrainerWorker]


def make_groups(step: int) -> list[TrajectoryGroup]:
    """Give four groups, which fill several rows of a batch."""
    return [
        TrajectoryGroup(
            Trajectory(
                messages_and_choices=[
                    {"role": "user", "content": f"step {step}: {question}"},
                    {"role": "assistant", "content": answer},
                ],
                reward=reward,
            )
            for answer, reward in (("yes", 1.0), ("never", 0.25), ("no", 0.0))
        )
        for question in ("yes?", "or no?", "maybe?", "when?")
    ]


@pytest.fixture
def make_worker(tiny_qwen3: Path) -> MakeWorker:
    def make(model_dir: Path, *, save_optimizer: bool = True) -> TrainerWorker:
        config = get_model_config(str(tiny_qwen3), str(model_dir), DROPOUT, has_cuda=False)  # type: ignore[arg-type]
        return TrainerWorker(str(tiny_qwen3), config, str(model_dir), save_optimizer=save_optimizer)

    return make


def take_steps(worker: TrainerWorker, model_dir: Path, kinds: int | list[str]) -> None:
    """Load, train and save some steps, each with its own data, and end the worker.

    Args:
        worker: Who does it.
        model_dir: The model's folder.
        kinds: "rl" or "sft" for each step; a number is so many of the former.
    """

    async def run() -> None:
        await worker.load()
        for kind in ["rl"] * kinds if isinstance(kinds, int) else kinds:
            await (take_step if kind == "rl" else take_sft_step)(worker, model_dir)
        await worker.close()

    asyncio.run(run())


async def take_step(worker: TrainerWorker, model_dir: Path) -> None:
    step = next_step(model_dir)
    batch = await worker.prepare(make_groups(step), SETTINGS)
    assert batch.disk_packed_tensors is not None
    assert batch.disk_packed_tensors["num_sequences"] > 2
    await worker.train_step(batch.disk_packed_tensors, SETTINGS, step)


async def take_sft_step(worker: TrainerWorker, model_dir: Path) -> None:
    step = next_step(model_dir)
    rows = [trajectory for group in make_groups(step)[:2] for trajectory in group]
    part = await worker.prepare_sft(rows, make_store(model_dir / "tensors"), first_index=0, batch_size=2)
    await worker.train_sft_step(StoredSFTBatches([part], [1e-2, 5e-3, 2e-3]), step)


def weights(model_dir: Path, step: int) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = load_file(checkpoint_dir(model_dir, step) / "adapter_model.safetensors")
    return loaded


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


def test_third_step_after_a_restart_is_that_of_a_run_without_one(
    make_worker: MakeWorker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    straight, stopped, forgetful = (tmp_path / name for name in ("straight", "stopped", "forgetful"))
    torch.manual_seed(5)
    take_steps(make_worker(straight), straight, 3)
    torch.manual_seed(5)
    take_steps(make_worker(stopped), stopped, 2)
    torch.manual_seed(99)  # a new process starts with another state
    torch.rand(7)
    take_steps(make_worker(stopped), stopped, 1)
    assert difference(weights(stopped, 2), weights(straight, 2)) == 0
    assert difference(weights(stopped, 3), weights(straight, 3)) < 1e-7

    torch.manual_seed(5)
    take_steps(make_worker(forgetful, save_optimizer=False), forgetful, 2)
    torch.manual_seed(99)
    take_steps(make_worker(forgetful, save_optimizer=False), forgetful, 1)
    assert difference(weights(forgetful, 2), weights(straight, 2)) == 0
    assert difference(weights(forgetful, 3), weights(straight, 3)) > 1e-3  # the test could see it
    assert "not restored" not in caplog.text


@pytest.mark.parametrize("kinds", [["sft", "sft", "sft"], ["sft", "rl", "sft"], ["sft", "rl", "rl"]], ids="-".join)
def test_a_restart_changes_no_step_of_fine_tuning_nor_the_change_between_both_kinds(
    make_worker: MakeWorker, tmp_path: Path, kinds: list[str]
) -> None:
    straight, stopped, forgetful = (tmp_path / name for name in ("straight", "stopped", "forgetful"))
    torch.manual_seed(5)
    take_steps(make_worker(straight), straight, kinds)
    torch.manual_seed(5)
    take_steps(make_worker(stopped), stopped, kinds[:2])
    shutil.copytree(stopped, forgetful)
    torch.manual_seed(99)  # a new process starts with another state
    take_steps(make_worker(stopped), stopped, kinds[2:])
    assert difference(weights(stopped, 3), weights(straight, 3)) < 1e-7

    torch.manual_seed(99)
    (checkpoint_dir(forgetful, 2) / "trainer_state.pt").unlink()
    take_steps(make_worker(forgetful), forgetful, kinds[2:])
    assert difference(weights(forgetful, 3), weights(straight, 3)) > 1e-4  # the test could see it


def test_only_the_newest_checkpoint_holds_the_state_and_each_says_what_made_it(
    make_worker: MakeWorker, tmp_path: Path, tiny_qwen3: Path
) -> None:
    take_steps(make_worker(tmp_path), tmp_path, 2)
    holders = [path.parent.name for path in sorted(tmp_path.glob("checkpoints/*/trainer_state.pt"))]
    assert holders == ["0002"]
    assert list_steps(tmp_path) == [0, 1, 2]
    origins = [read_manifest(checkpoint_dir(tmp_path, step)) for step in (0, 1, 2)]
    base = str(tiny_qwen3)
    assert [manifest.origin for manifest in origins if manifest is not None] == [
        Origin("initial", base),
        Origin("rl", base, ParentCheckpoint(0)),
        Origin("rl", base, ParentCheckpoint(1)),
    ]
    # Two averages of 4 bytes for each weight; the adapter itself has 4.
    saved = (checkpoint_dir(tmp_path, 2) / "trainer_state.pt").stat().st_size
    adapter = sum(value.numel() * 4 for value in weights(tmp_path, 2).values())
    assert 2 * adapter < saved < 2 * adapter + 120_000


def test_untrained_step_0_is_complete_and_without_effect(make_worker: MakeWorker, tmp_path: Path) -> None:
    from art.probe import AdapterProbe

    take_steps(make_worker(tmp_path), tmp_path, 0)
    names = {path.name for path in checkpoint_dir(tmp_path, 0).iterdir()}
    assert names >= {
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
        "probe.json",
        "tokenizer.json",
    }
    assert all(not value.any() for name, value in weights(tmp_path, 0).items() if "lora_B" in name)
    probe = AdapterProbe.read(checkpoint_dir(tmp_path, 0))
    assert probe is not None
    assert probe.logprobs == probe.base_logprobs


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))


def test_what_changed_on_the_disk_is_not_trained_on(
    make_worker: MakeWorker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    take_steps(make_worker(tmp_path), tmp_path, 1)
    flip_byte(checkpoint_dir(tmp_path, 1) / "trainer_state.pt")
    with caplog.at_level(logging.WARNING):
        take_steps(make_worker(tmp_path), tmp_path, 0)
    assert "optimizer state not restored, starting anew" in caplog.text
    flip_byte(checkpoint_dir(tmp_path, 1) / "adapter_model.safetensors")
    with pytest.raises(CheckpointIncompleteError, match=r"adapter_model\.safetensors"):
        take_steps(make_worker(tmp_path), tmp_path, 0)


def test_another_base_model_of_the_same_shape_is_said(
    make_worker: MakeWorker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    take_steps(make_worker(tmp_path), tmp_path, 0)
    take_steps(make_worker(tmp_path), tmp_path, 0)
    assert "was trained on" not in caplog.text
    path = checkpoint_dir(tmp_path, 0)
    manifest = read_manifest(path)
    assert manifest is not None
    replace(manifest, origin=Origin("rl", "another/model")).write(path)
    take_steps(make_worker(tmp_path), tmp_path, 0)
    assert "was trained on another/model, and is used on " in caplog.text


def make_optimizer(size: int) -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.ones(size))
    parameter.grad = torch.ones(size)
    return torch.optim.AdamW([parameter], lr=0.1)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda state: {**state, "parameter_names": ["v"]}, "other parameters"),
        (lambda state: {**state, "optimizer_class": "SGD"}, "it belongs to SGD"),
        (lambda state: {**state, "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}}, "other shapes"),
        (lambda state: {**state, "optimizer": {"state": {1: {}}}}, "index out of range"),
        (lambda state: {**state, "optimizer": {"state": [1]}}, "items"),
        (lambda state: {**state, "cpu_rng": torch.ones(1)}, "RNG"),
        (lambda state: [state], "list"),
    ],
)
def test_state_of_another_training_is_left_behind_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Callable[[Any], Any], complaint: str
) -> None:
    from art.unsloth.training_state import load_training_state, save_training_state
    from tests.support.tiny_checkpoints import save_checkpoint

    optimizer = make_optimizer(2)
    optimizer.step()
    path = save_checkpoint(tmp_path, 1)
    (path / "manifest.json").unlink()
    save_training_state(path, optimizer=optimizer, parameter_names=["w"], mode="rl", device=torch.device("cpu"))
    file = path / "trainer_state.pt"
    torch.save(change(torch.load(file, weights_only=True)), file)
    resumed = make_optimizer(2)
    assert load_training_state(path, optimizer=resumed, parameter_names=["w"]) is None
    assert not resumed.state
    assert "optimizer state not restored, starting anew" in caplog.text
    assert complaint in caplog.text
    resumed.step()


@pytest.mark.parametrize(
    ("saved", "then", "expected"), [("sft", "rl", set()), ("rl", "rl", {1.0}), (None, "rl", {1.0})]
)
def test_averages_of_another_kind_of_training_are_left_behind_also_after_a_restart(
    tmp_path: Path, saved: Any, then: Any, expected: set[float]
) -> None:
    from art.unsloth.training_state import forget_training_state, load_training_state, save_training_state
    from tests.support.tiny_checkpoints import save_checkpoint

    optimizer = make_optimizer(2)
    optimizer.step()
    path = save_checkpoint(tmp_path, 1)
    (path / "manifest.json").unlink()
    save_training_state(path, optimizer=optimizer, parameter_names=["w"], mode=saved, device=torch.device("cpu"))
    resumed = make_optimizer(2)
    mode = load_training_state(path, optimizer=resumed, parameter_names=["w"])
    assert mode == saved
    if mode not in (None, then):
        forget_training_state(resumed)
    assert {float(state["step"]) for state in resumed.state.values()} == expected
