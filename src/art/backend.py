"""The seam between the client and the machine that trains and serves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import art.dev as dev
    from art.model import Model, TrainableModel
    from art.trajectories import Trajectory, TrajectoryGroup
    from art.types import TrainConfig, TrainResult, TrainSFTConfig

AnyModel: TypeAlias = "Model[Any, Any]"
AnyTrainableModel: TypeAlias = "TrainableModel[Any, Any]"


class Backend(Protocol):
    """Trains models and serves them.

    A backend may have more methods, which models look for:

    - `supports_automatic_train_step_metrics() -> bool`: whether `Model.log` adds the time between training steps.
    - `automatic_gpu_cost_per_hour_usd(model) -> float | None`: what its GPUs cost, for the metric `costs/gpu`.
    - `_rollout_http_client(model) -> httpx.AsyncClient | None`: the client through which rollouts reach the server;
      None leaves it to the model. It belongs to the model's OpenAI client afterwards.

    And these, which `art.pipeline_trainer` looks for:

    - `adapter_lease(model, step)`: an async context manager that keeps a step served, and has
      `get_inference_name()` give it.
    - `prune_model_adapters(model, *, retain_steps: set[int])`: unload all steps but these.
    - `check_pipeline_options(model, options: dict) -> None`: raise for keywords of `train` that cannot be honoured.
    - `serve_newest(model) -> None`: have rollouts get the newest checkpoint, if they do not; awaited.
    - `describe_serving(model) -> str`: what the inference server is doing, in words.
    - `is_recovering(model) -> bool`: whether the server is being started again, within limits of the backend's.
    - `work_done(model) -> tuple[float, float]`: tokens processed and optimizer steps done so far; awaited.
    """

    def _model_inference_name(self, model: AnyModel, step: int | None = None) -> str:
        """Give the name under which the server answers for this step, or for the newest served one."""

    async def close(self) -> None:
        """Stop everything that the backend started. Does nothing the second time."""

    async def register(self, model: AnyModel) -> None:
        """Take the model in: make its folder and write its `model.json`."""

    async def _get_step(self, model: AnyTrainableModel) -> int:
        """Give the number of the newest checkpoint, 0 before the first training step."""

    async def _delete_checkpoint_files(self, model: AnyTrainableModel, steps_to_keep: list[int]) -> None:
        """Delete all checkpoints but these, and but those in use."""

    async def _prepare_backend_for_training(
        self, model: AnyTrainableModel, config: dev.OpenAIServerConfig | None
    ) -> tuple[str, str]:
        """Start serving the model.

        Returns:
            The server's base URL and API key.
        """

    async def train(
        self, model: AnyTrainableModel, trajectory_groups: Iterable[TrajectoryGroup], *args: Any, **kwargs: Any
    ) -> TrainResult:
        """Train one step and serve the result. Does not log. Each backend has keywords of its own."""

    def _train_model(
        self,
        model: AnyTrainableModel,
        trajectory_groups: list[TrajectoryGroup],
        config: TrainConfig,
        dev_config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Train one step by reinforcement learning, yielding metrics of each gradient step."""

    def _train_sft(
        self,
        model: AnyTrainableModel,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig,
        dev_config: dev.TrainSFTConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Train one step on given answers, yielding metrics of each batch."""
