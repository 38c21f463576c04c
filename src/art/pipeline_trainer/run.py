"""What the stages of one run share."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, field
from typing import Any

from art.model.state import PIPELINE_STATE_KEY
from art.pipeline_trainer.activity import Activity
from art.pipeline_trainer.backend_support import BackendSupport
from art.pipeline_trainer.group_queue import GroupQueue
from art.pipeline_trainer.scenarios import ScenarioSource
from art.pipeline_trainer.settings import PipelineSettings
from art.pipeline_trainer.state import PipelineState, SavedProgress
from art.pipeline_trainer.status import StatusReporter
from art.pipeline_trainer.types import AnyTrainableModel

logger = logging.getLogger(__name__)

SETTLE_LIMIT_S = 10.0  # for the backend to look which step is its newest


@dataclass
class PipelineRun:
    """One call of `PipelineTrainer.train`.

    Attributes:
        model: What is trained.
        config: Handed to rollouts and evaluations.
        support: The backend.
        settings: The numbers.
        state: The progress, as users see it.
        source: The scenarios.
        queue: Between rollouts and training.
        status: What is shown.
        activity: What is going on.
        start_step: The step that the run began with.
        consumed_before: Scenarios consumed beyond those that `source` counts.
        pending_evals: Steps whose evaluation is scheduled or running.
        leased_steps: How many rollouts hold each step.
        batch_step: The step that a batch is about to become.
        batch_offsets: The scenarios of that batch.
        saved_step: The newest step that this run has trained and saved, as far as that is known.
    """

    model: AnyTrainableModel
    config: Any
    support: BackendSupport
    settings: PipelineSettings
    state: PipelineState
    source: ScenarioSource[Any]
    queue: GroupQueue
    status: StatusReporter
    activity: Activity
    start_step: int
    consumed_before: int = 0
    pending_evals: set[int] = field(default_factory=set)
    leased_steps: dict[int, int] = field(default_factory=dict)
    batch_step: int | None = None
    batch_offsets: tuple[int, ...] = ()
    saved_step: int = 0
    _saves: int = 0
    _saved: int = 0
    _saving: threading.Lock = field(default_factory=threading.Lock)

    async def notify(self) -> None:
        """Have those look who wait for a version."""
        async with self.state.policy_updated:
            self.state.policy_updated.notify_all()

    def count_scenarios(self) -> None:
        """Bring the state's counts of scenarios up to date."""
        self.state.scenario_offset = self.source.handed_out
        self.state.total_scenarios_consumed = self.consumed_before + self.source.handed_out

    async def settle(self) -> None:
        """Find out, once nothing is being trained, what became of a batch whose training was cut off or failed."""
        if self.batch_step is None:
            return
        try:
            async with asyncio.timeout(SETTLE_LIMIT_S):
                newest = await self.model.get_step()
        except Exception as err:  # noqa: BLE001 - what ended the run matters more; the batch stays noted
            logger.warning("whether step %d was saved will be found out by the next run: %r", self.batch_step, err)
            return
        was_saved = newest >= self.batch_step
        logger.info(
            "the run ended while step %d was being trained: %s",
            self.batch_step,
            "it is saved, and its scenarios count as trained" if was_saved else "its scenarios will be trained again",
        )
        if was_saved:
            self.saved_step = newest
            self.source.finish(self.batch_offsets)
        self.batch_step, self.batch_offsets = None, ()

    async def save(self) -> None:
        """Write the progress to the model's state file, without blocking the event loop."""
        self._saves += 1
        await asyncio.to_thread(self._write, self._saves, self.progress())

    def save_at_end(self, *, has_failed: bool) -> None:
        """Write the progress at once, for good; of a run that has failed, that failure is what its caller learns."""
        self._saves += 1
        try:
            self._write(self._saves, self.progress())
        except Exception:
            if not has_failed:
                raise
            logger.exception("the progress was not saved at the end: a new run goes on from what was saved before")

    def progress(self) -> SavedProgress:
        """Give the progress in the form that is kept."""
        self.count_scenarios()
        state = self.state
        return SavedProgress(
            scenario_offset=state.scenario_offset,
            total_scenarios_consumed=state.total_scenarios_consumed,
            training_step=max(state.policy_version, self.saved_step),
            last_eval_step=state.last_eval_step,
            completed_eval_steps=tuple(sorted(state.completed_eval_steps)),
            pending_eval_steps=tuple(sorted(self.pending_evals)),
            unfinished_offsets=self.source.unfinished(),
            batch_step=self.batch_step,
            batch_offsets=self.batch_offsets,
        )

    def report(self) -> str:
        """Say in a line for each part what it is doing."""
        state = self.state
        lines = [
            f"server: {self.support.describe_serving()}",
            f"policy: version {state.policy_version}, next training step {state.next_training_step}, at most "
            f"{self.settings.max_steps_off_policy} steps apart",
            f"queue: {len(self.queue)} of {self.queue.maxsize} groups",
            f"evaluations scheduled or running: {sorted(self.pending_evals) or 'none'}",
            *self.activity.describe(),
        ]
        return "\n".join(f"  {line}" for line in lines)

    def _write(self, number: int, progress: SavedProgress) -> None:
        with self._saving:
            if number < self._saved:
                return  # a later one has been written already
            self.model.merge_state({PIPELINE_STATE_KEY: progress.to_json()})
            self._saved = number
