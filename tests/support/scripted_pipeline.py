"""A backend for pipelines that trains in no time, keeps real files, and does what a test wants at each step."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import art
from art.backend import AnyModel, AnyTrainableModel
from art.errors import LocalServingUnavailableError
from art.trajectories import TrajectoryGroup
from art.types import LocalTrainResult
from art.utils.atomic_files import write_text
from tests.support.conversations import make_trajectory
from tests.support.fake_backend import FakeBackend

Model = art.TrainableModel[None, dict[str, Any]]

_leased: contextvars.ContextVar[int | None] = contextvars.ContextVar("scripted_lease", default=None)


class ScriptedBackend(FakeBackend):
    """Each step is a file that tells which scenarios it was trained on.

    Attributes:
        before_step: Awaited with the step, before it is written.
        served_step: What rollouts get.
        leases: How many hold each step now.
        served_in_leases: Every step that was leased, in order.
        options: The keywords of each call of `train`.
        failure: Once set, the server counts as given up.
        deleted: Steps whose checkpoints were deleted.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(art_path=str(folder))
        self.folder = folder / "steps"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.before_step: Callable[[int], Awaitable[None]] | None = None
        self.after_step: Callable[[int], Awaitable[None]] | None = None
        self.served_step = self.newest()
        self.leases: Counter[int] = Counter()
        self.served_in_leases: list[int] = []
        self.options: list[dict[str, Any]] = []
        self.failure: LocalServingUnavailableError | None = None
        self.deleted: list[int] = []

    def newest(self) -> int:
        """Return the newest step on disk."""
        return max((int(path.stem) for path in self.folder.glob("*.json")), default=0)

    def trained(self) -> dict[int, list[int]]:
        """Return the scenarios that each step was trained on."""
        return {int(path.stem): json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))}

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        if self.failure is not None:
            raise self.failure
        step = _leased.get() if step is None else step
        return f"{model.name}@{self.served_step if step is None else step}"

    async def _get_step(self, model: AnyTrainableModel) -> int:
        return self.newest()

    async def _delete_checkpoint_files(self, model: AnyTrainableModel, steps_to_keep: list[int]) -> None:
        self.calls.append(("delete", steps_to_keep))

    @contextlib.asynccontextmanager
    async def adapter_lease(self, model: AnyTrainableModel, step: int) -> AsyncIterator[str]:
        """Pin a step."""
        self.leases[step] += 1
        self.served_in_leases.append(step)
        token = _leased.set(step)
        try:
            yield f"{model.name}@{step}"
        finally:
            _leased.reset(token)
            self.leases[step] -= 1

    async def train(
        self, model: AnyTrainableModel, trajectory_groups: Iterable[TrajectoryGroup], **kwargs: Any
    ) -> LocalTrainResult:
        """Write a step."""
        groups = list(trajectory_groups)
        self.options.append(kwargs)
        step = self.newest() + 1
        if self.before_step is not None:
            await self.before_step(step)
        offsets = [int(str(group.metadata["scenario_id"])) for group in groups if "scenario_id" in group.metadata]
        write_text(self.folder / f"{step:04d}.json", json.dumps(offsets))
        self.served_step = step
        if self.after_step is not None:
            await self.after_step(step)
        return LocalTrainResult(step=step, metrics={"loss/train": 0.5})


def make_scenarios(number: int) -> list[dict[str, Any]]:
    """Make scenarios that carry their offset as `scenario_id`."""
    return [{"metadata": {"scenario_id": str(offset)}, "offset": offset} for offset in range(number)]


def make_group(*rewards: float) -> TrajectoryGroup:
    """Make a group with these rewards."""
    return TrajectoryGroup([make_trajectory(reward) for reward in rewards])


async def roll_out(model: AnyTrainableModel, scenario: dict[str, Any], config: Any) -> TrajectoryGroup:
    """Give a group with variance."""
    await asyncio.sleep(0)
    return make_group(0.0, 1.0)


async def register(backend: ScriptedBackend, name: str = "agent") -> Model:
    """Make a model on the backend."""
    model: Model = art.TrainableModel(name=name, project="pipeline", base_model="none", report_metrics=[])
    await model.register(backend)
    return model


def read_progress(model: Model) -> dict[str, Any]:
    """Return what the pipeline keeps in the model's state."""
    progress: dict[str, Any] = (model.read_state() or {})["_pipeline_trainer"]
    return progress


def read_history(model: Model) -> list[dict[str, Any]]:
    """Return the rows of the model's history."""
    path = Path(model._get_output_dir()) / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
