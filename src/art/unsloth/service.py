"""The service of one trained model: it trains, saves, and makes every step available to rollouts.

Shared mode: engine and trainer take turns, and `_train_shared` yields the engine's memory to the trainer. Dedicated
mode: each has its own process, and `_train_dedicated` trains while rollouts go on. Either way a step is handed over by
one function, `register_lora_for_step`; `art.inference.publish` says what that means.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from art import dev
from art.checkpoints import checkpoint_dir, copy_checkpoint, newest_step, next_step, require_checkpoint
from art.dev.settings import TrainSettings
from art.dev.train import resolve_train_settings
from art.errors import InferenceError, LocalServingUnavailableError
from art.inference.publish import Publication
from art.inference.tasks import uninterrupted
from art.types import TrainConfig
from art.unsloth.warm_start import start_from_adapter
from art.unsloth.worker import StepOutcome

if TYPE_CHECKING:
    from art.preprocessing.batch import TrainingBatch
    from art.preprocessing.disk import DiskPackedTensors
    from art.preprocessing.sft_store import SFTBatches, StoredPart
    from art.trajectories import Trajectory, TrajectoryGroup
    from art.unsloth.parts import ServiceParts

logger = logging.getLogger(__name__)

_TrainStep: TypeAlias = Callable[[int], Awaitable[StepOutcome]]  # trains and saves the step of that number


@dataclass
class UnslothService:
    """Trains a model's adapter and serves its steps.

    Attributes:
        model_name: The part of the inference name before `@`.
        base_model: Hub id or path.
        config: The model's `_internal_config`, as the script wrote it.
        output_dir: The model's folder.
        on_event: Told about progress, served steps and failures; set by whoever hosts the service.
        has_own_process: Whether nothing else lives in the process in which the service runs.
    """

    model_name: str
    base_model: str
    config: dev.InternalModelConfig
    output_dir: str
    on_event: Callable[[Any], None] | None = None
    has_own_process: bool = False
    _is_sleeping: bool = False
    _latest_step: int = 0
    _parts: ServiceParts | None = field(default=None, repr=False)
    _failure: LocalServingUnavailableError | None = field(default=None, repr=False)
    _starting: asyncio.Lock | None = field(default=None, repr=False)

    @property
    def is_dedicated(self) -> bool:
        """Whether trainer and server have GPUs of their own."""
        return dev.is_dedicated_mode(self.config)

    async def start_openai_server(self, config: dev.OpenAIServerConfig | None) -> tuple[str, int]:
        """Load the trainer, start the engine, and serve the newest checkpoint; step 0 is made if there is none.

        Returns:
            Host and port to connect to. A second call returns those of the server that runs.

        Raises:
            ConfigurationError: A setting is wrong, the port is taken, or another process trains this model.
            DependencyError: A package is absent or unusable.
            ServerStartError: The engine did not start.
            ServerNotReadyError: It did not start in time.
        """
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:  # several objects of one model may be registered at once
            if self._parts is None:
                self._parts = await self._start(config or dev.OpenAIServerConfig())
        return self._parts.runtime.address

    async def prepare_batch(self, groups: Sequence[TrajectoryGroup], settings: TrainSettings) -> TrainingBatch:
        """Tokenize and pack trajectories; see `art.preprocessing.batch`."""
        return await self._started.worker.prepare(groups, settings, self._started.chat_template_kwargs)

    async def train(
        self,
        disk_packed_tensors: DiskPackedTensors,
        config: TrainConfig,
        _config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Train one step, save it, serve it; yield the metrics of each optimizer step.

        When this raises, generation goes on with the step that was served before. Cancelled, a step ends after its
        row, or after it is saved if that had begun; `training_ended` tells when.

        Raises:
            TrainingError: Training failed; the trainer is as it was before the step.
            CheckpointError: The step could not be saved; the trainer is as it was before the step.
            InferenceError: The step is saved but could not be served.
        """
        settings = resolve_train_settings(config, _config)
        worker = self._started.worker
        for metrics in await self._train_and_publish(
            lambda step: worker.train_step(disk_packed_tensors, settings, step, verbose=verbose)
        ):
            yield metrics

    async def prepare_sft(
        self, trajectories: Sequence[Trajectory], store: Path, *, first_index: int, batch_size: int
    ) -> StoredPart:
        """Tokenize given answers into a file of `store`; see `art.preprocessing.sft_store`."""
        return await self._started.worker.prepare_sft(
            trajectories,
            store,
            first_index=first_index,
            batch_size=batch_size,
            chat_template_kwargs=self._started.chat_template_kwargs,
        )

    async def train_sft(self, batches: SFTBatches, verbose: bool = False) -> AsyncIterator[dict[str, float]]:
        """Train one step on given answers, save it, serve it; yield the metrics of each optimizer step.

        The step reaches rollouts as one of reinforcement learning does, through `register_lora_for_step`. When this
        raises, generation goes on with the step that was served before.

        Args:
            batches: A list of batches, or `StoredSFTBatches`; without any there is no step.
            verbose: Log every optimizer step.

        Raises:
            NoTrainableTokensError: There is nothing to train.
            TrainingError: Training failed; the trainer is as it was before the step.
            CheckpointError: The step could not be saved; the trainer is as it was before the step.
            InferenceError: The step is saved but could not be served.
        """
        if not len(batches):
            return
        worker = self._started.worker
        for metrics in await self._train_and_publish(
            lambda step: worker.train_sft_step(batches, step, verbose=verbose)
        ):
            yield metrics

    async def _train_and_publish(self, train: _TrainStep) -> list[dict[str, float]]:
        async with self._started.training:
            self._raise_failure()
            return await (self._train_dedicated(train) if self.is_dedicated else self._train_shared(train))

    async def _train_shared(self, train: _TrainStep) -> list[dict[str, float]]:
        """Train while the engine has yielded, then make the new step known to engine and HTTP layer, and confirm it."""
        parts = self._started
        step = next_step(Path(self.output_dir))
        yielded_at = time.monotonic()
        slept = False
        try:
            async with parts.runtime.yielded_to_trainer():
                self._is_sleeping = slept = await parts.runtime.is_sleeping()
                try:
                    outcome = await self._train_on_freed_memory(train, step)
                finally:
                    self._is_sleeping = False
        except BaseException:
            if slept:  # no publication follows that would probe what the engine answers with after its sleep
                await uninterrupted(self._confirm_woken())
            raise
        turnaround_s = time.monotonic() - yielded_at - outcome.train_s - outcome.save_s
        publication = await self.register_lora_for_step(outcome.step, str(outcome.checkpoint_dir))
        return _with_timings(outcome, publication, turnaround_s)

    async def _train_dedicated(self, train: _TrainStep) -> list[dict[str, float]]:
        """Train in the trainer's process while the server goes on answering, then have the server take the step
        over."""
        step = next_step(Path(self.output_dir))
        outcome = await train(step)
        publication = await self._reload_adapter(str(outcome.checkpoint_dir), outcome.step)
        return _with_timings(outcome, publication, turnaround_s=0.0)

    async def _reload_adapter(self, checkpoint_path: str, step: int) -> Publication:
        """Have the server process load a checkpoint and confirm it.

        Connection faults are retried, a lost reply is looked up, a dead server is restarted within its limits or
        reported with everything that is known about it: see `art.inference.adapter_reload` and
        `art.inference.supervised`.
        """
        return await self.register_lora_for_step(step, checkpoint_path)

    async def register_lora_for_step(self, step: int, checkpoint_dir: str) -> Publication:
        """Make a saved step the one that rollouts get, after the server has confirmed it.

        Raises:
            InferenceError: It could not be served; the error says which part failed, and the previous step serves on.
        """
        self._raise_failure()
        parts = self._started
        try:
            return await parts.publisher.publish(step, Path(checkpoint_dir))
        finally:
            if parts.registry.served_step == step:  # also when this is cancelled while older steps are unloaded
                self._latest_step = step
                self._emit({"kind": "served", "step": step})

    async def skip_step(self) -> tuple[int, Publication]:
        """Advance by one step without training: the newest checkpoint is published again under the next number."""
        async with self._started.training:
            self._raise_failure()
            model_dir = Path(self.output_dir)
            source = require_checkpoint(model_dir, newest_step(model_dir) or 0)
            step = next_step(model_dir)
            path = await uninterrupted(asyncio.to_thread(copy_checkpoint, source, model_dir, step))
            return step, await self.register_lora_for_step(step, str(path))

    async def training_ended(self) -> None:
        """Return once no step is being trained, cancelled ones included: none will appear on disk afterwards."""
        async with self._started.training:
            pass

    async def serve_newest(self) -> int:
        """Publish the newest checkpoint, unless rollouts get it, as after a cancelled publication; return its step.

        Raises:
            InferenceError: It could not be served.
        """
        async with self._started.training:
            self._raise_failure()
            model_dir = Path(self.output_dir)
            step = newest_step(model_dir) or 0
            if step != self._started.registry.served_step:
                await self.register_lora_for_step(step, str(require_checkpoint(model_dir, step)))
            return step

    async def acquire_step(self, step: int) -> None:
        """Keep a step addressable until `release_step`, loading it again if it is not."""
        parts = self._started
        parts.registry.acquire(step)
        try:
            await parts.publisher.serve_again(step, checkpoint_dir(Path(self.output_dir), step))
        except BaseException:
            parts.registry.release(step)
            raise

    async def release_step(self, step: int) -> None:
        """Give one `acquire_step` back."""
        self._started.registry.release(step)

    async def prune_adapters(self, retain_steps: Sequence[int]) -> list[int]:
        """Unload the steps that are not to be retained, leased or served; return them."""
        return await self._started.publisher.prune(frozenset(retain_steps))

    async def needed_steps(self) -> list[int]:
        """List the steps whose checkpoint must stay: the served one and the leased ones."""
        registry = self._started.registry
        served = set() if registry.served_step is None else {registry.served_step}
        return sorted(registry.leased_steps() | served)

    async def served_step(self) -> int | None:
        """Return the step that rollouts get."""
        return self._started.registry.served_step

    async def tokens_processed(self) -> float | None:
        """Count the tokens that the server has processed so far; None where it does not tell."""
        return await self._started.runtime.progress_count()

    async def vllm_engine_is_sleeping(self) -> bool:
        """Whether the engine has yielded its memory to the trainer."""
        return self._is_sleeping

    async def close(self) -> None:
        """End engine and trainer; safe to call twice."""
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()

    async def _start(self, config: dev.OpenAIServerConfig) -> ServiceParts:
        from art.unsloth.parts import ServiceRequest, build_parts

        base_model, model_config = start_from_adapter(self.base_model, self.config)
        request = ServiceRequest(
            model_name=self.model_name,
            base_model=base_model,
            config=model_config,
            output_dir=self.output_dir,
            server_config=config,
            emit=self._emit,
        )
        parts = await build_parts(request, self._serving_failed)
        parts.monitor.start()
        self._latest_step = parts.step
        if self.has_own_process:
            gc.collect()
            gc.freeze()  # looking through all that was loaded would hold up every request for a third of a second
        self._emit({"kind": "served", "step": parts.step})
        return parts

    @property
    def _started(self) -> ServiceParts:
        if self._parts is None:
            raise LocalServingUnavailableError(
                f"the service of {self.model_name} is not running; register the model first"
            )
        return self._parts

    async def _train_on_freed_memory(self, train: _TrainStep, step: int) -> StepOutcome:
        worker = self._started.worker
        try:
            await worker.onload()
            return await train(step)
        finally:
            await uninterrupted(worker.offload())

    async def _confirm_woken(self) -> None:
        """Probe the served step; an engine that does not answer with its weights any more serves nobody."""
        try:
            await self._started.publisher.confirm_served()
        except LocalServingUnavailableError as err:
            await self._serving_failed(err)
        except InferenceError as err:
            await self._serving_failed(
                LocalServingUnavailableError(f"after a failed step the engine does not answer as before: {err}")
            )

    async def _serving_failed(self, error: LocalServingUnavailableError) -> None:
        self._failure = error
        logger.error("serving failed: %s", error)
        self._emit({"kind": "unavailable", "error": error})

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _emit(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "unavailable":
            self._failure = event["error"]
        if self.on_event is not None:
            self.on_event(dict(event))


def _with_timings(outcome: StepOutcome, publication: Publication, turnaround_s: float) -> list[dict[str, float]]:
    """Add what belongs to the whole step to each of its metrics, since they are averaged."""
    whole = {
        "time/step_trainer_s": outcome.train_s,
        "time/step_save_s": outcome.save_s,
        "time/step_publish_s": publication.took_s,
        "time/step_turnaround_s": turnaround_s,
        "sync/served_step": float(publication.step),
    }
    if publication.logprob_gap is not None:
        whole["sync/logprob_gap"] = publication.logprob_gap
    return [{**metrics, **whole} for metrics in outcome.metrics]
