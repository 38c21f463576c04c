"""Drive the trainer from an event loop: one thread does the work, a step is all or nothing.

Lives beside the service in shared mode, and in a child process of its own in dedicated mode.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from art.checkpoint_manifest import MadeBy
from art.checkpoints import (
    checkpoint_dir,
    drop_optional_files,
    newest_step,
    next_step,
    origin_after,
    remove_abandoned_staging,
    stage_checkpoint,
    warn_of_another_base,
)
from art.dev.chat_template import resolve_chat_template
from art.dev.model import InternalModelConfig
from art.dev.settings import TrainSettings
from art.errors import ARTError, ConfigurationError, TrainingError
from art.inference.tasks import uninterrupted

if TYPE_CHECKING:
    from art.preprocessing.batch import TrainingBatch
    from art.preprocessing.disk import DiskPackedTensors
    from art.preprocessing.sft_store import SFTBatches, StoredPart
    from art.trajectories import Trajectory, TrajectoryGroup
    from art.unsloth.trainer import LoraTrainer

logger = logging.getLogger(__name__)

T = TypeVar("T")


def worker_environment() -> dict[str, str]:
    """Return variables for a process that trains, where the user has not set them.

    OpenMP's threads wait for each other by spinning. As soon as anything else runs on the machine, a step on a CPU
    takes ten times as long and more; a passive wait costs nothing on an idle one.
    """
    return {} if "OMP_WAIT_POLICY" in os.environ else {"OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True)
class StepOutcome:
    """A trained and saved step.

    Attributes:
        step: Its number.
        checkpoint_dir: Its complete checkpoint.
        metrics: One dictionary per optimizer step, in order.
        train_s: Seconds of training.
        save_s: Seconds of saving.
    """

    step: int
    checkpoint_dir: Path
    metrics: list[dict[str, float]]
    train_s: float
    save_s: float


class TrainerWorker:
    """Owns the trainer and its thread.

    Args:
        base_model: Hub id or path.
        config: The model's configuration, complete.
        output_dir: The model's folder.
        save_optimizer: Save the optimizer's state with the newest checkpoint.
        gpu_memory_share: Of each GPU's memory, how much the trainer may take; None for no limit.
        sft_args: Trainer arguments of supervised fine-tuning that differ from its defaults.
    """

    def __init__(
        self,
        base_model: str,
        config: InternalModelConfig,
        output_dir: str,
        *,
        save_optimizer: bool,
        gpu_memory_share: float | None = None,
        sft_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.on_event: Callable[[Any], None] | None = None
        self._base_model = base_model
        self._config = config
        self._model_dir = Path(output_dir)
        self._save_optimizer = save_optimizer
        self._gpu_memory_share = gpu_memory_share
        self._sft_args = dict(sft_args or {})
        self._trainer: LoraTrainer | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._seed = config.get("peft_args", {}).get("random_state", 3407)

    async def load(self) -> int:
        """Load the model with its newest checkpoint, or a fresh adapter that is saved as step 0.

        Returns:
            The newest saved step.
        """
        return await self._run(lambda stop: self._load())

    async def prepare(
        self,
        groups: Sequence[TrajectoryGroup],
        settings: TrainSettings,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> TrainingBatch:
        """Tokenize and pack trajectories into `tensors/` of the model's folder."""
        return await self._run(lambda stop: self._prepare(groups, settings, chat_template_kwargs))

    async def train_step(
        self, packed: DiskPackedTensors, settings: TrainSettings, step: int, *, verbose: bool = False
    ) -> StepOutcome:
        """Train on a packed batch and save the result as a checkpoint.

        When anything fails, or the call is cancelled, the trainer is as it was before and no checkpoint exists.
        """
        return await self._run(
            lambda stop: self._take_step(
                "rl",
                self._loaded.train(packed, settings, verbose=verbose),
                step,
                packed["num_sequences"],
                stop,
            )
        )

    async def prepare_sft(
        self,
        trajectories: Sequence[Trajectory],
        store: Path,
        *,
        first_index: int,
        batch_size: int,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> StoredPart:
        """Tokenize given answers into a file; see `art.preprocessing.sft_store.store_part`."""
        return await self._run(
            lambda stop: self._prepare_sft(trajectories, store, first_index, batch_size, chat_template_kwargs)
        )

    async def train_sft_step(self, batches: SFTBatches, step: int, *, verbose: bool = False) -> StepOutcome:
        """Train on given answers and save the result as a checkpoint; all or nothing, as `train_step`."""
        return await self._run(
            lambda stop: self._take_step(
                "sft", self._loaded.train_sft(batches, verbose=verbose), step, len(batches), stop
            )
        )

    async def offload(self) -> None:
        """Take the trainer off the GPU."""
        await self._run(lambda stop: self._loaded.offload())

    async def onload(self) -> None:
        """Put the trainer on the GPU again."""
        await self._run(lambda stop: self._loaded.onload())

    async def idle(self) -> None:
        """Return once all work that was begun before has ended."""
        await self._run(lambda stop: None)

    async def close(self) -> None:
        """Free the trainer."""
        if self._executor is not None:
            if self._trainer is not None:
                await self._run(lambda stop: self._loaded.close())
            self._executor.shutdown()
            self._executor = None

    @property
    def _loaded(self) -> LoraTrainer:
        if self._trainer is None:
            raise TrainingError("the trainer is not loaded; register the model first")
        return self._trainer

    async def _run(self, work: Callable[[threading.Event], T]) -> T:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="art-trainer")
        stop = threading.Event()
        call = asyncio.get_running_loop().run_in_executor(self._executor, work, stop)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            # The thread cannot be cancelled: it is asked to stop and waited for, so that nothing runs on unseen.
            stop.set()
            await uninterrupted(_settled(call))
            raise

    def _load(self) -> int:
        if self._trainer is None:
            from art.unsloth.offload import limit_gpu_memory
            from art.unsloth.trainer import LoraTrainer

            remove_abandoned_staging(self._model_dir)
            if self._gpu_memory_share is not None:
                limit_gpu_memory(self._gpu_memory_share)
            trainer = LoraTrainer(
                base_model=self._base_model,
                config=self._config,
                output_dir=self._model_dir,
                sft_args=self._sft_args,
            )
            with _named_base_model(self._base_model):
                trainer.load()
            self._trainer = trainer
        step = newest_step(self._model_dir)
        if step is None:
            self._save(0, "initial")
            return 0
        warn_of_another_base(checkpoint_dir(self._model_dir, step), self._base_model)
        return step

    def _prepare(
        self,
        groups: Sequence[TrajectoryGroup],
        settings: TrainSettings,
        chat_template_kwargs: Mapping[str, object] | None,
    ) -> TrainingBatch:
        from art.preprocessing.batch import build_training_batch

        return build_training_batch(
            groups,
            tokenizer=self._tokenizer(),
            image_processor=self._loaded.image_processor,
            tensors_dir=self._model_dir / "tensors",
            max_sequence_tokens=self._loaded.max_sequence_tokens,
            settings=settings,
            chat_template_kwargs=chat_template_kwargs,
            rng=random.Random(f"{self._seed}/{next_step(self._model_dir)}"),  # so that a resumed run orders rows alike
            vocabulary_tokens=self._loaded.vocabulary_tokens,
        )

    def _prepare_sft(
        self,
        trajectories: Sequence[Trajectory],
        store: Path,
        first_index: int,
        batch_size: int,
        chat_template_kwargs: Mapping[str, object] | None,
    ) -> StoredPart:
        from art.preprocessing.sft_store import store_part

        return store_part(
            store,
            trajectories,
            first_index=first_index,
            batch_size=batch_size,
            tokenizer=self._tokenizer(),
            max_seq_length=self._loaded.max_conversation_tokens,
            chat_template_kwargs=chat_template_kwargs,
        )

    def _tokenizer(self) -> Any:
        """Return the tokenizer with the chat template that the server uses."""
        tokenizer = self._loaded.tokenizer
        template = resolve_chat_template(self._config).template
        if template is not None:
            tokenizer.chat_template = template
        return tokenizer

    def _take_step(
        self,
        made_by: MadeBy,
        optimizer_steps: Iterator[dict[str, float]],
        step: int,
        num_expected: int,
        stop: threading.Event,
    ) -> StepOutcome:
        with self._all_or_nothing():
            started = time.monotonic()
            metrics = []
            try:
                for row in optimizer_steps:
                    metrics.append(row)
                    self._tell_progress(step, len(metrics), num_expected, row)
                    if stop.is_set():
                        raise TrainingError(
                            f"training of step {step} was cancelled after {len(metrics)} optimizer steps"
                        )
            finally:
                _close_iterator(optimizer_steps)
            trained = time.monotonic()
            path = self._save(step, made_by)
            if stop.is_set():
                logger.info("step saved although its call was cancelled meanwhile: step=%d", step)
        return StepOutcome(step, path, metrics, trained - started, time.monotonic() - trained)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        before = self._loaded.snapshot()
        try:
            yield
        except BaseException:
            self._loaded.restore(before)
            raise

    def _save(self, step: int, made_by: MadeBy) -> Path:
        previous = newest_step(self._model_dir)
        source = None if previous is None else checkpoint_dir(self._model_dir, previous)
        origin = origin_after(source, made_by, self._base_model)
        with stage_checkpoint(self._model_dir, step, origin) as staging:
            self._loaded.save(staging, include_optimizer=self._save_optimizer)
        drop_optional_files(self._model_dir, keep=step)
        return checkpoint_dir(self._model_dir, step)

    def _tell_progress(self, step: int, done: int, total: int, row: Mapping[str, float]) -> None:
        logger.info("trained: step=%d row=%d/%d loss=%.4g", step, done, total, row.get("loss/train", float("nan")))
        if self.on_event is not None:
            self.on_event({"kind": "train_progress", "step": step, "done": done, "total": total})


@contextmanager
def _named_base_model(base_model: str) -> Iterator[None]:
    try:
        yield
    except ARTError:
        raise
    except (OSError, ValueError) as err:  # what the loading libraries raise for whatever is not a model of theirs
        raise ConfigurationError(f"base_model {base_model!r} cannot be loaded: {err}") from err


async def _settled(call: asyncio.Future[Any]) -> None:
    await asyncio.wait({call})
    if not call.cancelled() and call.exception() is not None:
        logger.info("work ended after it was cancelled: %s", call.exception())


def _close_iterator(rows: Iterator[Any]) -> None:
    close = getattr(rows, "close", None)
    if close is not None:
        close()
