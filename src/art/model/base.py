"""A model that answers prompts, and what is recorded about it. What trains one is in `art.model.trainable`."""

from __future__ import annotations

import asyncio
import copy
import operator
import time
import warnings
from collections.abc import Iterable, Mapping
from contextvars import Token
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Unpack, cast, overload

from openai import AsyncOpenAI
from pydantic import BaseModel, Field, PrivateAttr, WrapValidator
from typing_extensions import TypeVar

from art.api_costs import CostRecorder
from art.metrics import MetricsBuilder
from art.model.fields import ModelKeywords, keep_dict, refuse_unknown_keywords
from art.model.model_file import check_config
from art.model.openai_client import build_openai_client
from art.model.path_parts import check_path_part, check_split
from art.model.run_log import LogEntry, RowSink, RunLog, normalize_trajectory_groups
from art.model.state import StateFile
from art.model.wandb_run import WandbRun
from art.trajectories import Trajectory, TrajectoryGroup
from art.utils.output_dirs import get_model_dir

if TYPE_CHECKING:
    from wandb import Run

    from art.backend import Backend

ModelConfig = TypeVar("ModelConfig", bound=BaseModel | None)
StateType = TypeVar("StateType", bound=dict[str, Any], default=dict[str, Any])


class Model(BaseModel, Generic[ModelConfig, StateType]):
    """A prompted model, reached through an OpenAI-compatible server.

    Attributes:
        name: Names the model's folder and its W&B run; no path separators and no "@".
        project: Names the folder that models are compared in; likewise.
        entity: Owner of the project in W&B, for whoever needs it.
        id: Any identifier of the caller's.
        run_id: Any identifier of the caller's.
        config: The caller's own settings, kept in `model.json`.
        inference_api_key: Key of the inference server; never written to disk.
        inference_base_url: Address of the inference server, with its `/v1`.
        inference_model_name: The name the server knows the model by; backends keep it current.
        base_path: Folder that holds `{project}/models/{name}`. Relative to the working directory until the model
            is registered; a backend sets its own.
        report_metrics: Where metrics go besides the history; None: to W&B where `WANDB_API_KEY` is set.
        trainable: Whether a backend can train it.
    """

    name: str
    project: str
    entity: str | None = None
    id: str | None = None
    run_id: str | None = None
    config: Annotated[ModelConfig, WrapValidator(keep_dict)]
    inference_api_key: str | None = Field(default=None, repr=False)
    inference_base_url: str | None = None
    inference_model_name: str | None = None
    base_path: str = ".art"
    report_metrics: list[str] | None = None
    trainable: bool = False

    _backend: Backend | None = PrivateAttr(default=None)
    _s3_bucket: str | None = PrivateAttr(default=None)
    _s3_prefix: str | None = PrivateAttr(default=None)
    _openai_client: AsyncOpenAI | None = PrivateAttr(default=None)
    _openai_client_made_for: tuple[object, ...] | None = PrivateAttr(default=None)
    _run_start_time: float = PrivateAttr(default_factory=time.time)
    _run_start_monotonic: float = PrivateAttr(default_factory=time.monotonic)
    _run_log: RunLog | None = PrivateAttr(default=None)
    _wandb: WandbRun | None = PrivateAttr(default=None)

    @overload
    def __init__(
        self: Model[None, dict[str, Any]], *, config: None = None, **keywords: Unpack[ModelKeywords]
    ) -> None: ...

    @overload
    def __init__(self, *, config: ModelConfig, **keywords: Unpack[ModelKeywords]) -> None: ...

    def __init__(
        self,
        *,
        name: str,
        project: str,
        entity: str | None = None,
        id: str | None = None,
        config: ModelConfig | None = None,
        inference_api_key: str | None = None,
        inference_base_url: str | None = None,
        inference_model_name: str | None = None,
        base_path: str = ".art",
        report_metrics: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Make a model; see the class for the meaning of the fields.

        Raises:
            TypeError: A keyword is not a field.
            ConfigurationError: The name or the project cannot name a folder.
        """
        refuse_unknown_keywords(type(self), kwargs)
        check_path_part("project", project)
        check_path_part("model name", name)
        super().__init__(
            name=name,
            project=project,
            entity=entity,
            id=id,
            config=config,
            inference_api_key=inference_api_key,
            inference_base_url=inference_base_url,
            inference_model_name=inference_model_name,
            base_path=base_path,
            report_metrics=report_metrics,
            **kwargs,
        )

    # Copies share the backend, but not what one object accumulates ---------------------------------------------

    def __copy__(self) -> Model[ModelConfig, StateType]:
        copied = super().__copy__()
        copied._forget_run()
        return copied

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Model[ModelConfig, StateType]:
        copied = self.__copy__()
        object.__setattr__(copied, "__dict__", copy.deepcopy(self.__dict__, memo))
        return copied

    def _forget_run(self) -> None:
        self._openai_client = self._openai_client_made_for = self._run_log = None
        self._run_start_time, self._run_start_monotonic = time.time(), time.monotonic()
        self._wandb = None if self._wandb is None else WandbRun(self._wandb.config)

    def safe_model_dump(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Dump the model with `config` set to None."""
        return {**self.model_dump(*args, **kwargs), "config": None}

    # The backend and its server --------------------------------------------------------------------------------

    def backend(self) -> Backend:
        """Give the backend that the model is registered with.

        Raises:
            ValueError: There is none.
        """
        if self._backend is None:
            raise ValueError(f"model {self.name!r} is not registered: call `await model.register(backend)` first")
        return self._backend

    async def register(self, backend: Backend) -> None:
        """Bind the model to a backend, which makes its folder.

        Raises:
            ConfigurationError: `config` cannot be written as JSON.
            TypeError: It is no backend.
        """
        if isinstance(backend, type) or not hasattr(backend, "register"):
            raise TypeError(f"a backend is needed, as in `await model.register(LocalBackend())`, got {backend!r}")
        check_config(self.config)
        previous, self._backend = self._backend, backend
        try:
            await backend.register(self)
        except BaseException:
            self._backend = previous
            raise

    def openai_client(self) -> AsyncOpenAI:
        """Give a client for the model's inference server; the same one until its address or key changes.

        Raises:
            ValueError: The address or the key is not known.
        """
        url, key = self.inference_base_url, self.inference_api_key
        if url is None or key is None:
            raise ValueError(
                f"model {self.name!r} has no inference server: "
                + (
                    "call `await model.register(backend)` first"
                    if self.trainable
                    else "set inference_base_url and inference_api_key"
                )
            )
        client, made_for = self._openai_client, self._openai_client_made_for
        wanted_for = (url, key, self._backend)
        # A client that somebody else put there stays.
        if client is None or (made_for is not None and (made_for != wanted_for or client.is_closed())):
            make_http_client = getattr(self._backend, "_rollout_http_client", None)
            client = build_openai_client(url, key, None if make_http_client is None else make_http_client(self))
            self._openai_client, self._openai_client_made_for = client, wanted_for
        return client

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Give the arguments with which `litellm.acompletion` reaches the model, at this step or the newest."""
        name = self.get_inference_name(step)
        return {
            "model": f"hosted_vllm/{name}" if self.trainable else name,
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    def get_inference_name(self, step: int | None = None) -> str:
        """Give the name to ask the inference server for, at this step or the newest that is served."""
        name_by_backend = getattr(self._backend, "_model_inference_name", None)
        if name_by_backend is not None:
            return cast(str, name_by_backend(self, step=step))
        name = self.inference_model_name or self.name
        return name if step is None else f"{name}@{step}"

    async def get_step(self) -> int:
        """Give how many steps the model was trained; 0 for one that is not trainable."""
        if not self.trainable:
            return 0
        return await self.backend()._get_step(cast(Any, self))

    # State -----------------------------------------------------------------------------------------------------

    def _get_output_dir(self) -> str:
        check_path_part("project", self.project)
        check_path_part("model name", self.name)
        return get_model_dir(self, self.base_path)

    def _model_dir(self) -> Path:
        return Path(self._get_output_dir())

    def overwrite_state(self, state: StateType) -> None:
        """Replace the stored state; what this package itself keeps there stays."""
        StateFile(self._model_dir()).overwrite(state)

    def write_state(self, state: StateType) -> None:
        """Do what `overwrite_state` does, under its old name."""
        warnings.warn(
            "Model.write_state is deprecated: use overwrite_state, or merge_state to keep other keys",
            DeprecationWarning,
            stacklevel=2,
        )
        self.overwrite_state(state)

    def merge_state(self, state: StateType) -> StateType:
        """Merge dicts deeply into the stored state, replacing lists and scalars, and give the result."""
        return cast(StateType, StateFile(self._model_dir()).merge(state))

    def read_state(self) -> StateType | None:
        """Give the stored state, or None where none was stored."""
        return cast("StateType | None", StateFile(self._model_dir()).read())

    # Metrics ---------------------------------------------------------------------------------------------------

    def metrics_builder(self, cost_context: str | None = None) -> MetricsBuilder:
        """Give the model's metrics builder, with stored totals loaded.

        Args:
            cost_context: Give a view with this cost context; None: that of training.
        """
        builder = self._get_run_log().builder(self._model_dir())
        return builder if cost_context is None else builder.for_cost_context(cost_context)

    def activate_metrics_context(self, cost_context: str) -> Token[CostRecorder]:
        """Make that builder the current task's; undo it with `token.var.reset(token)`."""
        return self.metrics_builder(cost_context).activate()

    def update_wandb_config(self, config: dict[str, Any]) -> None:
        """Merge into the configuration of the W&B run, now or when it is opened.

        Raises:
            TypeError: It is not a dict.
            ConfigurationError: A key has another value already.
        """
        if not isinstance(config, dict):
            raise TypeError(f"the W&B config must be a dict, got {type(config).__name__}")
        self._get_wandb().update_config(config)

    async def log(
        self,
        trajectories: Iterable[Trajectory | BaseException] | Iterable[TrajectoryGroup] | None = None,
        split: str = "val",
        *,
        metrics: dict[str, float] | None = None,
        step: int | None = None,
    ) -> None:
        """Record trajectories and metrics: in a trajectory file, in the history, and in W&B where that is in use.

        Args:
            trajectories: Groups, or bare trajectories and exceptions, which make one group. None records metrics only.
            split: The part of the data: `train`, `val`, `test`, or any other name.
            metrics: More metrics; they replace averages of the same name.
            step: The step they belong to; None: the model's current one.

        Raises:
            TypeError: Groups and bare trajectories are mixed, or a metric, reward or step is not a number.
            ConfigurationError: The split cannot name a folder, or a metric's name is reserved.
        """
        if trajectories is None and metrics is None:
            return
        check_split(split)
        if not isinstance(metrics, Mapping | None):
            raise TypeError(f"metrics must be a dict of numbers by name, got a {type(metrics).__name__}")
        groups = None if trajectories is None else normalize_trajectory_groups(trajectories)
        is_supported = getattr(self._backend, "supports_automatic_train_step_metrics", None)
        get_price = getattr(self._backend, "automatic_gpu_cost_per_hour_usd", None)
        entry = LogEntry(
            groups=groups,
            metrics=metrics or {},
            split=split,
            step=await self.get_step() if step is None else operator.index(step),
            has_automatic_metrics=is_supported is not None and bool(is_supported()),
            gpu_cost_per_hour_usd=None if get_price is None else get_price(self),
        )
        run_log, model_dir = self._get_run_log(), self._model_dir()
        await asyncio.to_thread(lambda: run_log.write(entry, model_dir, sink=self._wandb_sink()))

    def _log_metrics(self, metrics: dict[str, float], split: str, step: int) -> None:
        self._get_run_log().write_row(metrics, split, step, self._model_dir(), sink=self._wandb_sink())

    def _get_run_log(self) -> RunLog:
        if self._run_log is None:
            self._run_log = RunLog(started_monotonic_s=self._run_start_monotonic)
        return self._run_log

    def _get_wandb(self) -> WandbRun:
        if self._wandb is None:
            self._wandb = WandbRun()
        return self._wandb

    def _get_wandb_run(self) -> Run | None:
        return self._get_wandb().get(
            project=self.project,
            name=self.name,
            report_metrics=self.report_metrics,
            inference_base_url=self.inference_base_url,
        )

    def _wandb_sink(self) -> RowSink | None:
        run = self._get_wandb_run()
        return None if run is None else lambda row: self._get_wandb().log(run, row)
