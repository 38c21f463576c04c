"""A model that a backend trains."""

from __future__ import annotations

import copy
import logging
import time
import warnings
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from pydantic import PrivateAttr

from art.checkpoints import list_steps
from art.costs import CostCalculator
from art.errors import ConfigurationError
from art.metrics_taxonomy import average_metric_samples
from art.model.awaited_call import only_awaited
from art.model.base import Model, ModelConfig, StateType
from art.model.fields import TrainableModelKeywords
from art.model.history import best_steps
from art.model.run_log import HISTORY_FILE, TRAIN_SPLIT
from art.model.training_input import require_config, require_groups
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import TrainConfig, TrainSFTConfig

if TYPE_CHECKING:
    import art.dev as dev
    from art.backend import Backend

logger = logging.getLogger(__name__)

TRAINER_TIME_KEY = "time/step_trainer_s"


def _no_costs(_prompt_tokens: int | None, _completion_tokens: int | None, _cost_context: str) -> dict[str, float]:
    return {}


class TrainableModel(Model[ModelConfig, StateType], Generic[ModelConfig, StateType]):
    """A model that a backend trains; see `Model` for what it shares with prompted ones.

    Attributes:
        base_model: Hub id or path of the model that training starts from.
        trainable: True.
    """

    base_model: str
    trainable: bool = True

    _internal_config: dev.InternalModelConfig | None = PrivateAttr(default=None)
    _cost_calculator: CostCalculator | None = PrivateAttr(default=None)

    @overload
    def __init__(
        self: TrainableModel[None, dict[str, Any]], *, config: None = None, **keywords: Unpack[TrainableModelKeywords]
    ) -> None: ...

    @overload
    def __init__(self, *, config: ModelConfig, **keywords: Unpack[TrainableModelKeywords]) -> None: ...

    def __init__(
        self,
        *,
        name: str,
        project: str,
        entity: str | None = None,
        id: str | None = None,
        run_id: str | None = None,
        config: ModelConfig | None = None,
        base_model: str,
        base_path: str = ".art",
        report_metrics: list[str] | None = None,
        _internal_config: dev.InternalModelConfig | None = None,
        **kwargs: Any,
    ) -> None:
        """Make a model; see the class for the meaning of the fields.

        Raises:
            TypeError: A keyword is not a field.
            ConfigurationError: The name or the project cannot name a folder.
        """
        own: dict[str, Any] = {"base_model": base_model, "config": config, **kwargs}
        super().__init__(
            name=name,
            project=project,
            entity=entity,
            id=id,
            run_id=run_id,
            base_path=base_path,
            report_metrics=report_metrics,
            **own,
        )
        self._internal_config = _internal_config

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> TrainableModel[ModelConfig, StateType]:
        copied = super().__deepcopy__(memo)
        assert isinstance(copied, TrainableModel)
        copied._internal_config = copy.deepcopy(self._internal_config, memo)
        return copied

    def model_dump(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Dump the fields, and `_internal_config` under that key."""
        return {**super().model_dump(*args, **kwargs), "_internal_config": self._internal_config}

    async def register(self, backend: Backend, _openai_client_config: dev.OpenAIServerConfig | None = None) -> None:
        """Bind the model to a backend and have it served.

        Args:
            backend: Trains and serves the model from now on.
            _openai_client_config: Settings of the inference server.

        Raises:
            ConfigurationError: `config` cannot be written as JSON, or the backend refuses a setting.
        """
        await super().register(backend)
        base_url, api_key = await backend._prepare_backend_for_training(self, _openai_client_config)
        self.inference_base_url, self.inference_api_key = base_url, api_key
        get_name = getattr(backend, "_model_inference_name", None)
        self.inference_model_name = self.name if get_name is None else get_name(self)

    @only_awaited(
        "model.train gives nothing to iterate over: write `await model.train(…)`; for its metrics use "
        "`result = await backend.train(model, groups, …)`"
    )
    async def train(
        self,
        trajectory_groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        _config: dev.TrainConfig | None = None,
        verbose: bool = False,
    ) -> None:
        """Train one step, then log the groups and the metrics at the step that it led to.

        Deprecated: `backend.train(model, groups, …)` says what it did, and leaves logging to the caller.

        Args:
            trajectory_groups: What to learn from.
            config: Settings of the step; None for the defaults.
            _config: Further settings.
            verbose: Show more of what is done.

        Raises:
            TypeError: Something else than a group is among the groups, or `config` is no `TrainConfig`.
        """
        warnings.warn(
            "model.train is deprecated: use `result = await backend.train(model, groups, …)`, then "
            "`await model.log(groups, split='train', metrics=result.metrics, step=result.step)`",
            DeprecationWarning,
            stacklevel=2,
        )
        groups = require_groups(trajectory_groups)
        started = time.monotonic()
        samples = await _collect(
            self.backend()._train_model(self, groups, require_config(config, TrainConfig), _config or {}, verbose)
        )
        metrics = average_metric_samples(samples)
        metrics.setdefault(TRAINER_TIME_KEY, time.monotonic() - started)
        await self.log(groups, TRAIN_SPLIT, metrics=metrics, step=await self.get_step())

    @only_awaited("model.train_sft gives nothing to iterate over: write `await model.train_sft(…)`")
    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: dev.TrainSFTConfig | None = None,
        verbose: bool = False,
    ) -> None:
        """Train one step on given answers, then log the metrics at the step that it led to.

        Args:
            trajectories: Conversations with the answers to learn.
            config: Settings of the step; None for the defaults.
            _config: Further settings.
            verbose: Show more of what is done.
        """
        started = time.monotonic()
        samples = await _collect(
            self.backend()._train_sft(
                self, trajectories, require_config(config, TrainSFTConfig), _config or {}, verbose
            )
        )
        if samples:
            metrics = average_metric_samples(samples) | {TRAINER_TIME_KEY: time.monotonic() - started}
            await self.log(split=TRAIN_SPLIT, metrics=metrics, step=await self.get_step())

    async def delete_checkpoints(
        self, best_checkpoint_metric: str = "val/reward", *, keep_recent: int = 1, keep_best: int = 1
    ) -> None:
        """Delete all checkpoints but the newest and the best ones, which are those with the highest average.

        Where the history has no such metric, only the newest are kept. What is served or leased is never deleted.

        Args:
            best_checkpoint_metric: Which metric of the history decides.
            keep_recent: How many of the newest to keep, 1 at least.
            keep_best: How many of the best to keep, among those that are still there.

        Raises:
            ConfigurationError: `keep_recent` is below 1, or `keep_best` is negative.
        """
        if keep_recent < 1 or keep_best < 0:
            raise ConfigurationError(f"keep_recent={keep_recent} must be 1 or more, keep_best={keep_best} 0 or more")
        newest = await self.get_step()
        saved = list_steps(self._model_dir())
        recent = {newest, *saved[-keep_recent:]}
        ranked = best_steps(self._model_dir() / HISTORY_FILE, best_checkpoint_metric)
        best = [step for step in ranked if step in saved or not saved][:keep_best]
        if keep_best > 0 and not ranked:
            logger.warning(
                "no value of %s in the history of %s: keeping only the newest checkpoint, step %d",
                best_checkpoint_metric,
                self.name,
                newest,
            )
        await self.backend()._delete_checkpoint_files(self, sorted({*recent, *best}))

    @property
    def cost_calculator(self) -> CostCalculator:
        """The function that prices requests to this model."""
        return self._cost_calculator or _no_costs

    def set_cost_calculator(self, calculator: CostCalculator | None) -> None:
        """Set the function that prices requests to this model; None for no costs."""
        self._cost_calculator = calculator


async def _collect(samples: AsyncIterator[dict[str, float]]) -> list[dict[str, float]]:
    return [sample async for sample in samples]
