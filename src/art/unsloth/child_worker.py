"""The trainer of dedicated mode: a worker in a child process, replaced by a new one when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from art.dev.settings import TrainSettings
from art.errors import TrainerDiedError
from art.inference.rotating_log import start_log
from art.inference.tasks import uninterrupted
from art.unsloth.worker import StepOutcome, TrainerWorker, worker_environment
from mp_actors import ActorProxy, move_to_child_process

if TYPE_CHECKING:
    from art.preprocessing.batch import TrainingBatch
    from art.preprocessing.disk import DiskPackedTensors
    from art.preprocessing.sft_store import SFTBatches, StoredPart
    from art.trajectories import Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)

T = TypeVar("T")

PROCESS_TITLE = "art-trainer"
CANCELLED_CALL_LIMIT_S = 30.0  # longer than a row takes, after which a cancelled step ends, or than saving one does


class ChildWorker:
    """Calls a `TrainerWorker` in a process of its own.

    When that process dies the call under way fails with `TrainerDiedError`; the next call starts another one, which
    goes on from the newest checkpoint.

    Args:
        worker: Pickled into each new process.
        log_path: The process's output; earlier ones are kept.
        env: Variables set in the process, such as its GPUs.
    """

    def __init__(self, worker: TrainerWorker, *, log_path: Path, env: Mapping[str, str]) -> None:
        self.on_event: Callable[[Any], None] | None = None
        self._worker = worker
        self._log_path = log_path
        self._env = worker_environment() | dict(env)
        self._proxy: ActorProxy | None = None
        self._dead: set[ActorProxy] = set()
        self._ending = asyncio.Lock()  # held while a cancelled call has not ended

    async def load(self) -> int:
        """Start the process and load the model; return the newest saved step."""
        return int(await (await self._alive(load=False)).load())

    async def prepare(
        self,
        groups: Sequence[TrajectoryGroup],
        settings: TrainSettings,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> TrainingBatch:
        """Tokenize and pack trajectories."""
        proxy = await self._alive()
        return await self._to_its_end(proxy, proxy.prepare(groups, settings, chat_template_kwargs))

    async def train_step(
        self, packed: DiskPackedTensors, settings: TrainSettings, step: int, *, verbose: bool = False
    ) -> StepOutcome:
        """Train on a packed batch and save the result as a checkpoint.

        Cancelled, it returns when the process has ended the step: by then the checkpoint is there or never will be.
        """
        proxy = await self._alive()
        return await self._to_its_end(proxy, proxy.train_step(packed, settings, step, verbose=verbose))

    async def prepare_sft(
        self,
        trajectories: Sequence[Trajectory],
        store: Path,
        *,
        first_index: int,
        batch_size: int,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> StoredPart:
        """Tokenize given answers into a file."""
        proxy = await self._alive()
        call = proxy.prepare_sft(
            trajectories,
            store,
            first_index=first_index,
            batch_size=batch_size,
            chat_template_kwargs=chat_template_kwargs,
        )
        return await self._to_its_end(proxy, call)

    async def train_sft_step(self, batches: SFTBatches, step: int, *, verbose: bool = False) -> StepOutcome:
        """Train on given answers and save the result as a checkpoint; cancelled as `train_step`."""
        proxy = await self._alive()
        return await self._to_its_end(proxy, proxy.train_sft_step(batches, step, verbose=verbose))

    async def offload(self) -> None:
        """Nothing: the trainer keeps its own GPU."""

    async def onload(self) -> None:
        """Nothing: the trainer is on its own GPU."""

    async def close(self) -> None:
        """End the process."""
        if self._proxy is not None:
            await asyncio.to_thread(self._proxy.close)
            self._proxy = None

    async def _to_its_end(self, proxy: ActorProxy, call: Awaitable[T]) -> T:
        """Await a call; when it is cancelled, also the end of what it began, which later calls wait for as well."""
        try:
            return await call
        except asyncio.CancelledError:
            async with self._ending:
                await uninterrupted(self._end_call(proxy))
            raise

    async def _end_call(self, proxy: ActorProxy) -> None:
        """Wait until what was cancelled has ended, or end the process."""
        try:
            async with asyncio.timeout(CANCELLED_CALL_LIMIT_S):
                await proxy.idle()
        except TimeoutError:
            logger.warning(
                "the trainer has not ended a cancelled call within %g s and is killed: log=%s",
                CANCELLED_CALL_LIMIT_S,
                self._log_path,
            )
            await asyncio.to_thread(proxy.process.kill_group)
            await proxy.process.exited_here()
            self._dead.add(proxy)
        except (TrainerDiedError, RuntimeError) as err:  # it is gone, or being closed
            logger.debug("the trainer ended with a cancelled call: %s", err)

    async def _alive(self, *, load: bool = True) -> ActorProxy:
        async with self._ending:
            pass
        if self._proxy is not None and self._proxy in self._dead:
            await asyncio.to_thread(self._proxy.close)
            self._dead.discard(self._proxy)
            self._proxy = None
            logger.warning("trainer process is started again: log=%s", self._log_path)
        if self._proxy is None:
            self._proxy = await asyncio.to_thread(self._start)
            await self._proxy.ready()
            if load:
                await self._proxy.load()
        return self._proxy

    def _start(self) -> ActorProxy:
        proxy = move_to_child_process(
            self._worker, log_file=start_log(self._log_path), process_name=PROCESS_TITLE, env=self._env
        )
        proxy.on_event(self._pass_on)
        proxy.on_death(lambda error: self._dead.add(proxy))
        return proxy

    def _pass_on(self, event: Any) -> None:
        if self.on_event is not None:
            self.on_event(event)
