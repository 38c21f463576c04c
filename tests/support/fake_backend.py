"""A backend that trains nothing and serves nothing, and remembers what it was asked to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx

from art import dev
from art.backend import AnyModel, AnyTrainableModel, Backend
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import TrainConfig, TrainResult, TrainSFTConfig


class FakeBackend:
    """Counts steps; each training call yields the samples it was given.

    Attributes:
        step: The newest step.
        samples: What a training call yields.
        calls: Name and arguments of every call that changes something, in order.
        register_error: Raised on registering, if set.
    """

    def __init__(self, *, step: int = 0, samples: Iterable[dict[str, float]] = (), art_path: str | None = None) -> None:
        self.step = step
        self.samples = list(samples)
        self.art_path = art_path
        self.calls: list[tuple[str, Any]] = []
        self.register_error: Exception | None = None
        self.base_url, self.api_key = "http://127.0.0.1:8123/v1", "key-1"

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        return f"{model.name}@{self.step if step is None else step}"

    async def close(self) -> None:
        self.calls.append(("close", None))

    async def register(self, model: AnyModel) -> None:
        if self.register_error is not None:
            raise self.register_error
        if self.art_path is not None:
            model.base_path = self.art_path
        self.calls.append(("register", model.name))

    async def _get_step(self, model: AnyTrainableModel) -> int:
        return self.step

    async def _delete_checkpoint_files(self, model: AnyTrainableModel, steps_to_keep: list[int]) -> None:
        self.calls.append(("delete", steps_to_keep))

    async def _prepare_backend_for_training(
        self, model: AnyTrainableModel, config: dev.OpenAIServerConfig | None
    ) -> tuple[str, str]:
        self.calls.append(("prepare", config))
        return self.base_url, self.api_key

    async def train(
        self, model: AnyTrainableModel, trajectory_groups: Iterable[TrajectoryGroup], **kwargs: Any
    ) -> TrainResult:
        self.step += 1
        return TrainResult(step=self.step)

    async def _train_model(
        self,
        model: AnyTrainableModel,
        trajectory_groups: list[TrajectoryGroup],
        config: TrainConfig,
        dev_config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        self.calls.append(("train", (len(trajectory_groups), config, dev_config, verbose)))
        for sample in self.samples:
            yield sample
        self.step += 1

    async def _train_sft(
        self,
        model: AnyTrainableModel,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig,
        dev_config: dev.TrainSFTConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        self.calls.append(("train_sft", (len(list(trajectories)), config, dev_config, verbose)))
        for sample in self.samples:
            yield sample
        self.step += 1


class FakeLocalBackend(FakeBackend):
    """One that also has the optional methods."""

    def __init__(self, *, gpu_cost_per_hour_usd: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.gpu_cost_per_hour_usd = gpu_cost_per_hour_usd
        self.http_client: httpx.AsyncClient | None = None

    def supports_automatic_train_step_metrics(self) -> bool:
        return True

    def automatic_gpu_cost_per_hour_usd(self, model: AnyModel) -> float | None:
        return self.gpu_cost_per_hour_usd

    def _rollout_http_client(self, model: AnyModel) -> httpx.AsyncClient | None:
        return self.http_client


_conforms: Backend = FakeBackend()
