"""What a pipeline asks of its backend, and what it does where the backend cannot do that.

Needed is only `async train(model, groups, **options)`, whose result has `.step` and `.metrics`. What else is used if it
is there is listed in `art.backend.Backend`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Protocol

from art.errors import ARTError, ConfigurationError, PipelineStalledError
from art.gather_context import find_fatal_error
from art.pipeline_trainer.settings import TrainOptions
from art.pipeline_trainer.types import AnyTrainableModel
from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

# What every backend does if it is not told otherwise, so that one without the keyword is as good.
_NEUTRAL = {"loss_fn": "cispo", "loss_fn_config": None, "normalize_advantages": True, "adam_params": None}
_NEUTRAL |= {"packed_sequence_length": None}
WORK_DONE_LIMIT_S = 10.0  # for counting what a server has processed: a busy one answers late


class TrainOutcome(Protocol):
    """What `backend.train` returns."""

    step: int
    metrics: dict[str, float]


class BackendSupport:
    """One model on one backend, as a pipeline uses it."""

    def __init__(self, model: AnyTrainableModel, backend: Any, options: TrainOptions) -> None:
        """Check nothing yet; `check` does.

        Args:
            model: A registered model.
            backend: What trains it.
            options: For each call of `train`.
        """
        self.model = model
        self.backend = backend
        self._options = asdict(options) | {"adam_params": options.adam_params}
        self._takes_save_checkpoint = True

    def check(self) -> None:
        """Find out which options the backend takes.

        Raises:
            ConfigurationError: It would ignore one, or not do what it says.
        """
        parameters = inspect.signature(self.backend.train).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self._takes_save_checkpoint = takes_all or "save_checkpoint" in parameters
        if not takes_all:
            for name in [name for name in self._options if name not in parameters]:
                value = self._options.pop(name)
                if name not in _NEUTRAL or value != _NEUTRAL[name]:
                    raise ConfigurationError(
                        f"{name}={value!r} cannot be honoured: {type(self.backend).__name__}.train() has no such "
                        "option; leave it out, or use another backend"
                    )
        check = getattr(self.backend, "check_pipeline_options", None)
        if check is not None:
            check(self.model, dict(self._options))

    async def train(self, groups: list[TrajectoryGroup], *, save_checkpoint: bool) -> TrainOutcome:
        """Train one step; on return rollouts are answered by it."""
        options = dict(self._options)
        if self._takes_save_checkpoint:
            options["save_checkpoint"] = save_checkpoint
        outcome: TrainOutcome = await self.backend.train(self.model, groups, **options)
        return outcome

    async def newest_step(self, *, limit_s: float | None) -> int:
        """Give the newest step, which rollouts get from now on, where the backend can see to that.

        Raises:
            PipelineStalledError: The backend did not do so in time.
        """
        serve = getattr(self.backend, "serve_newest", None)
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                if serve is not None:
                    await serve(self.model)
                return await self.model.get_step()
        except TimeoutError as err:
            if limit_s is None or not limit.expired():
                raise
            raise PipelineStalledError(
                f"the backend did not serve its newest step within {limit_s:g} s, so that the pipeline did not start",
                report=self.describe_serving(),
                waited_s=limit_s,
            ) from err

    @contextlib.asynccontextmanager
    async def lease(self, step: int) -> AsyncIterator[str | None]:
        """Keep a step served, and `get_inference_name()` at it, while the block runs.

        Yields:
            Its name, or None where the backend has no leases.
        """
        make = getattr(self.backend, "adapter_lease", None)
        if make is None:
            yield None
            return
        lease = make(self.model, step)
        name = await lease.__aenter__()
        try:
            yield name if isinstance(name, str) else None
        finally:
            try:
                await lease.__aexit__(None, None, None)
            except Exception as err:  # noqa: BLE001 - what the block gave, or raised, matters more
                level = logging.WARNING if self.serving_error() is None else logging.DEBUG
                logger.log(level, "step %d was not given back to the server: %r", step, err)

    def current_name(self) -> str | None:
        """Give the name that rollouts ask for now, where the model can say."""
        try:
            return self.model.get_inference_name()
        except (ARTError, ValueError):
            return None

    def serving_error(self) -> BaseException | None:
        """Give the diagnosis of a server that was given up, or None."""
        try:
            self.model.get_inference_name()
        except Exception as err:  # noqa: BLE001 - only a server that is gone is of interest here
            return find_fatal_error(err)
        return None

    def describe_serving(self) -> str:
        """Say in words what the inference server is doing."""
        error = self.serving_error()
        if error is not None:
            return str(error)
        describe = getattr(self.backend, "describe_serving", None)
        return str(describe(self.model)) if describe is not None else f"answers as {self.current_name() or 'unknown'}"

    @property
    def can_recover(self) -> bool:
        """Whether the backend starts its server again."""
        return getattr(self.backend, "is_recovering", None) is not None

    def is_recovering(self) -> bool:
        """Tell whether the server is being started again, for which the backend has limits of its own."""
        ask = getattr(self.backend, "is_recovering", None)
        return ask is not None and bool(ask(self.model))

    async def work_done(self) -> tuple[float, float]:
        """Give the number of tokens processed, and of rows trained, so far; zeros where the backend cannot say."""
        count = getattr(self.backend, "work_done", None)
        if count is None:
            return 0.0, 0.0
        try:
            async with asyncio.timeout(WORK_DONE_LIMIT_S):
                tokens, rows = await count(self.model)
        except Exception as err:  # noqa: BLE001 - a server that does not tell has not worked, as far as is known
            logger.debug("the backend did not say what it has done: %r", err)
            return 0.0, 0.0
        return float(tokens), float(rows)

    async def delete_checkpoints(self, keep: set[int]) -> None:
        """Delete all checkpoints but these, and those that the backend needs."""
        await self.backend._delete_checkpoint_files(self.model, sorted(keep))

    async def unload_adapters(self, keep: set[int]) -> None:
        """Unload all steps but these from the server, where the backend can."""
        prune = getattr(self.backend, "prune_model_adapters", None)
        if prune is not None:
            await prune(self.model, retain_steps=keep)
