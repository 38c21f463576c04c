"""The service of one trained model: it trains, saves, and makes every step available to rollouts.

Shared mode: engine and trainer take turns, and `_train_shared` yields the engine's memory to the trainer. A step is handed
over by one function, `register_lora_for_step`, whichever way it came about; see `art.inference.publish` for what that means.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art import dev
from art.checkpoints import checkpoint_dir, copy_checkpoint, newest_step, next_step, require_checkpoint
from art.dev.get_model_config import get_model_config
from art.dev.serving import resolve_serving_settings
from art.dev.settings import ServingSettings, TrainSettings
from art.dev.train import resolve_train_settings
from art.errors import LocalServingUnavailableError, ServerNotReadyError
from art.inference.adapters import AdapterRegistry
from art.inference.monitor import ServingMonitor
from art.inference.publish import AdapterPublisher, Publication
from art.inference.tasks import uninterrupted
from art.types import TrainConfig
from art.unsloth.worker import StepOutcome, TrainerWorker
from art.utils.directory_lock import DirectoryLock

if TYPE_CHECKING:
    from art.preprocessing.batch import TrainingBatch
    from art.preprocessing.disk import DiskPackedTensors
    from art.trajectories import TrajectoryGroup
    from art.vllm.in_process import InProcessRuntime

logger = logging.getLogger(__name__)


@dataclass
class UnslothService:
    """Trains a model's adapter and serves its steps.

    Attributes:
        model_name: The part of the inference name before `@`.
        base_model: Hub id or path.
        config: The model's `_internal_config`, as the script wrote it.
        output_dir: The model's folder.
        on_event: Told about progress, served steps and failures; set by whoever hosts the service.
    """

    model_name: str
    base_model: str
    config: dev.InternalModelConfig
    output_dir: str
    on_event: Callable[[Any], None] | None = None
    _is_sleeping: bool = False
    _latest_step: int = 0
    _parts: _Parts | None = field(default=None, repr=False)
    _failure: LocalServingUnavailableError | None = field(default=None, repr=False)

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
        if self._parts is None:
            try:
                self._parts = await _Parts.start(self, config or dev.OpenAIServerConfig())
            except BaseException:
                await uninterrupted(self.close())
                raise
            self._parts.monitor.start()
        return self._parts.runtime.address

    async def prepare_batch(self, groups: Sequence[TrajectoryGroup], settings: TrainSettings) -> TrainingBatch:
        """Tokenize and pack trajectories; see `art.preprocessing.batch`."""
        kwargs = self._started.chat_template_kwargs
        return await self._started.worker.prepare(groups, settings, kwargs)

    async def train(
        self,
        disk_packed_tensors: DiskPackedTensors,
        config: TrainConfig,
        _config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Train one step, save it, serve it; yield the metrics of each optimizer step.

        When this raises, generation goes on with the step that was served before.

        Raises:
            TrainingError: Training failed; the trainer is as it was before the step.
            CheckpointError: The step could not be saved; the trainer is as it was before the step.
            InferenceError: The step is saved but could not be served.
        """
        settings = resolve_train_settings(config, _config)
        for metrics in await self._train_shared(disk_packed_tensors, settings, verbose=verbose):
            yield metrics

    async def _train_shared(
        self, disk_packed_tensors: DiskPackedTensors, settings: TrainSettings, *, verbose: bool = False
    ) -> list[dict[str, float]]:
        """Train while the engine has yielded, then make the new step known to engine and HTTP layer, and confirm it."""
        parts = self._started
        async with parts.training:
            self._raise_failure()
            step = next_step(Path(self.output_dir))
            yielded_at = time.monotonic()
            async with parts.runtime.yielded_to_trainer():
                self._is_sleeping = await parts.runtime.is_sleeping()
                try:
                    outcome = await self._train_on_freed_memory(disk_packed_tensors, settings, step, verbose)
                finally:
                    self._is_sleeping = False
            turnaround_s = time.monotonic() - yielded_at - outcome.train_s - outcome.save_s
            publication = await self.register_lora_for_step(outcome.step, str(outcome.checkpoint_dir))
            return _with_timings(outcome, publication, turnaround_s)

    async def register_lora_for_step(self, step: int, checkpoint_dir: str) -> Publication:
        """Make a saved step the one that rollouts get, after the server has confirmed it.

        Raises:
            InferenceError: It could not be served; the error says which part failed, and the previous step serves on.
        """
        self._raise_failure()
        publication = await self._started.publisher.publish(step, Path(checkpoint_dir))
        self._latest_step = step
        self._emit({"kind": "served", "step": step})
        return publication

    async def skip_step(self) -> tuple[int, Publication]:
        """Advance by one step without training: the newest checkpoint is published again under the next number."""
        parts = self._started
        async with parts.training:
            self._raise_failure()
            model_dir = Path(self.output_dir)
            current = newest_step(model_dir)
            source = require_checkpoint(model_dir, 0 if current is None else current)
            step = next_step(model_dir)
            path = await asyncio.to_thread(copy_checkpoint, source, model_dir, step)
            return step, await self.register_lora_for_step(step, str(path))

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
        """List the steps whose checkpoint must stay: the newest served and the leased ones."""
        registry = self._started.registry
        return sorted({*registry.leased_steps(), *({registry.served_step} - {None})})  # type: ignore[arg-type]

    async def served_step(self) -> int | None:
        """Return the step that rollouts get."""
        return self._started.registry.served_step

    async def vllm_engine_is_sleeping(self) -> bool:
        """Whether the engine has yielded its memory to the trainer."""
        return self._is_sleeping

    async def close(self) -> None:
        """End engine and trainer; safe to call twice."""
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.close()

    @property
    def _started(self) -> _Parts:
        if self._parts is None:
            raise LocalServingUnavailableError(
                f"the service of {self.model_name} is not running; register the model first"
            )
        return self._parts

    async def _train_on_freed_memory(
        self, packed: DiskPackedTensors, settings: TrainSettings, step: int, verbose: bool
    ) -> StepOutcome:
        worker = self._started.worker
        try:
            await worker.onload()
            return await worker.train_step(packed, settings, step, verbose=verbose)
        finally:
            await uninterrupted(worker.offload())

    async def _serving_failed(self, error: LocalServingUnavailableError) -> None:
        self._failure = error
        logger.error("serving failed: %s", error)
        self._emit({"kind": "unavailable", "error": error})

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _emit(self, event: Mapping[str, Any]) -> None:
        if self.on_event is not None:
            self.on_event(dict(event))


@dataclass
class _Parts:
    """What a started service is made of."""

    worker: TrainerWorker
    runtime: InProcessRuntime
    registry: AdapterRegistry
    publisher: AdapterPublisher
    monitor: ServingMonitor
    lock: DirectoryLock
    chat_template_kwargs: Mapping[str, object]
    training: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    async def start(cls, service: UnslothService, server_config: dev.OpenAIServerConfig) -> _Parts:
        from art.vllm.in_process import InProcessRuntime

        model_dir = Path(service.output_dir)
        lock = DirectoryLock(model_dir)
        lock.acquire()
        worker: TrainerWorker | None = None
        runtime: InProcessRuntime | None = None
        try:
            has_cuda = await asyncio.to_thread(_has_cuda)
            config = get_model_config(service.base_model, service.output_dir, service.config, has_cuda=has_cuda)
            settings = resolve_serving_settings(config.get("serving"), dedicated=False)
            worker = TrainerWorker(
                service.base_model, config, service.output_dir, save_optimizer=settings.save_optimizer
            )
            worker.on_event = service.on_event
            service._emit({"kind": "phase", "text": "loading the trainer"})
            step = await worker.load()
            await worker.offload()
            service._emit({"kind": "phase", "text": "starting the inference engine"})
            runtime = await _start_runtime(service, config, server_config, settings, step=step, has_cuda=has_cuda)
            registry = AdapterRegistry(service.model_name, model_dir)
            publisher = AdapterPublisher(
                runtime,
                registry,
                max_logprob_gap=settings.max_logprob_gap,
                max_live_adapters=settings.max_live_adapters,
            )
            await publisher.publish(step, checkpoint_dir(model_dir, step))
        except BaseException:
            if runtime is not None:
                await uninterrupted(runtime.close())
            if worker is not None:
                await uninterrupted(worker.close())
            lock.release()
            raise
        service._latest_step = step
        service._emit({"kind": "served", "step": step})
        monitor = ServingMonitor(runtime, interval_s=settings.health_interval_s, on_failure=service._serving_failed)
        return cls(worker, runtime, registry, publisher, monitor, lock, dict(config.get("chat_template_kwargs") or {}))

    async def close(self) -> None:
        await self.monitor.stop()
        await self.publisher.close()
        await self.runtime.close()
        self.registry.close()
        await self.worker.close()
        self.lock.release()


async def _start_runtime(
    service: UnslothService,
    config: dev.InternalModelConfig,
    server_config: dev.OpenAIServerConfig,
    settings: ServingSettings,
    *,
    step: int,
    has_cuda: bool,
) -> InProcessRuntime:
    from art.vllm.engine import plan_engine
    from art.vllm.in_process import InProcessRuntime

    log_path = Path(server_config.get("log_file") or Path(service.output_dir) / "logs" / "vllm.log")
    completed = dev.get_openai_server_config(
        service.model_name,
        service.base_model,
        str(log_path),
        lora_path=str(checkpoint_dir(Path(service.output_dir), step)),
        config=server_config,
    )
    plan = plan_engine(
        engine_args=config["engine_args"],
        server_config=completed,
        max_live_adapters=settings.max_live_adapters,
        has_cuda=has_cuda,
        cpu_threads=os.cpu_count() or 1,
    )
    server_args = completed.get("server_args") or {}
    start = InProcessRuntime.start(
        plan,
        host=server_args.get("host") or "127.0.0.1",
        port=int(server_args.get("port") or 0),
        settings=settings,
        log_path=log_path,
    )
    try:
        return await asyncio.wait_for(start, settings.server_start_timeout_s)
    except TimeoutError as err:
        raise ServerNotReadyError(
            f"the inference engine for {service.base_model} was not ready after {settings.server_start_timeout_s:g} s "
            f"(ART_SERVER_TIMEOUT or serving['server_start_timeout_s']); log: {log_path}",
            waited_s=settings.server_start_timeout_s,
            url=f"{server_args.get('host') or '127.0.0.1'}:{server_args.get('port') or 0}",
            log_path=str(log_path),
        ) from err


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


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
