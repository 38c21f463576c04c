"""A step of supervised fine-tuning takes the way of every other step: trained, then published. With fakes only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from art.checkpoints import checkpoint_dir
from art.inference.publish import Publication
from art.preprocessing.sft import SFTBatch
from art.unsloth.service import UnslothService
from art.unsloth.worker import StepOutcome

BATCHES = [SFTBatch([], 1e-3, 2, 5), SFTBatch([], 1e-4, 1, 3)]
DEDICATED = {"trainer_gpu_ids": [0], "inference_gpu_ids": [1]}
YIELDED = ["yield", "onload", "train 0", "offload", "wake", "publish 0"]


class Machine:
    """Stands for runtime, worker, publisher and registry; notes what is done in which order."""

    def __init__(self, model_dir: Path) -> None:
        self.done: list[str] = []
        self.trained: Any = None
        self.model_dir = model_dir
        self.training = asyncio.Lock()
        self.served_step: int | None = None
        self.runtime = self.worker = self.publisher = self.registry = self

    @asynccontextmanager
    async def yielded_to_trainer(self) -> AsyncIterator[None]:
        self.done.append("yield")
        yield
        self.done.append("wake")

    async def is_sleeping(self) -> bool:
        return False

    async def onload(self) -> None:
        self.done.append("onload")

    async def offload(self) -> None:
        self.done.append("offload")

    async def train_sft_step(self, batches: Any, step: int, *, verbose: bool) -> StepOutcome:
        self.done.append(f"train {step}")
        self.trained = batches
        metrics = [{"loss/train": 2.0}, {"loss/train": 1.0}]
        return StepOutcome(step, checkpoint_dir(self.model_dir, step), metrics, train_s=3.0, save_s=0.5)

    async def publish(self, step: int, path: Path) -> Publication:
        assert path == checkpoint_dir(self.model_dir, step)
        self.done.append(f"publish {step}")
        self.served_step = step
        return Publication(step, f"m@{step}", 1e-5, 0.25)


def train(tmp_path: Path, config: Any, batches: list[SFTBatch]) -> tuple[Machine, list[Any], list[dict[str, float]]]:
    machine, events = Machine(tmp_path), []
    service = UnslothService(
        model_name="m", base_model="b", config=config, output_dir=str(tmp_path), on_event=events.append
    )
    service._parts = machine  # type: ignore[assignment]

    async def run() -> list[dict[str, float]]:
        return [metrics async for metrics in service.train_sft(batches)]

    return machine, events, asyncio.run(run())


@pytest.mark.parametrize(("config", "expected"), [({}, YIELDED), (DEDICATED, ["train 0", "publish 0"])])
def test_a_step_is_trained_and_published(config: Any, expected: list[str], tmp_path: Path) -> None:
    machine, events, metrics = train(tmp_path, config, BATCHES)
    assert machine.done == expected
    assert machine.trained is BATCHES
    assert events == [{"kind": "served", "step": 0}]
    assert [entry["loss/train"] for entry in metrics] == [2.0, 1.0]
    for entry in metrics:
        assert (entry["sync/served_step"], entry["sync/logprob_gap"]) == (0.0, 1e-5)
        assert (entry["time/step_trainer_s"], entry["time/step_publish_s"]) == (3.0, 0.25)


def test_without_batches_there_is_no_step(tmp_path: Path) -> None:
    machine, events, metrics = train(tmp_path, {}, [])
    assert (machine.done, events, metrics) == ([], [], [])
