"""Train batch after batch."""

from __future__ import annotations

import asyncio
import logging
import time

from art import env
from art.errors import TrainingError
from art.pipeline_trainer.batching import Batch, Batcher
from art.pipeline_trainer.eval_stage import EvalStage
from art.pipeline_trainer.facts import steps_off_policy
from art.pipeline_trainer.retention import CheckpointKeeper
from art.pipeline_trainer.rollout_stage import RolloutStage
from art.pipeline_trainer.run import PipelineRun

logger = logging.getLogger(__name__)

TRAIN_SPLIT = "train"
DISCARDED_SPLIT = "discarded"
NAME = "training"


class TrainingStage:
    """Collects batches, trains them, and makes known what came of it.

    Attributes:
        batcher: Sorts the groups.
    """

    def __init__(self, run: PipelineRun, rollouts: RolloutStage, evals: EvalStage, keeper: CheckpointKeeper) -> None:
        self.batcher = Batcher(run)
        self._run = run
        self._rollouts = rollouts
        self._evals = evals
        self._keeper = keeper
        self._step_began = time.monotonic()
        self._step_log_level = logging.INFO if env.TRAIN_STEP_LOG.read() else logging.DEBUG

    async def run(self) -> None:
        """Train until there are no more groups, or as many steps as wanted.

        Raises:
            Exception: A step failed.
        """
        run = self._run
        last_step = None if run.settings.max_steps is None else run.start_step + run.settings.max_steps
        self._step_began = time.monotonic()
        while last_step is None or run.state.policy_version < last_step:
            waiting_since = time.monotonic()
            batch = await self.batcher.collect()
            is_last = batch.is_last or run.state.done  # after a stop, one more with what was waiting
            if batch.finished:
                await self._train(batch, idle_s=time.monotonic() - waiting_since)
            if is_last or _is_cancelled():  # a backend may have taken the cancellation for its own
                break
        await self._log_discards()
        run.activity.leave(NAME)

    async def _train(self, batch: Batch, *, idle_s: float) -> None:
        run, state = self._run, self._run.state
        old_step = state.policy_version
        # Written before the step exists, so that after a kill the step's existence tells whether these were trained.
        run.batch_step, run.batch_offsets = old_step + 1, batch.offsets
        await run.save()
        state.next_training_step = old_step + 1
        await run.notify()

        is_eval_due = self._evals.is_due(old_step + 1)
        run.activity.enter(NAME, f"training step {old_step + 1} on {len(batch.finished)} groups")
        run.status.note_training_start(len(batch.finished))
        logger.log(self._step_log_level, "train call starts: step=%d groups=%d", old_step + 1, len(batch.finished))
        began = time.monotonic()
        try:
            result = await run.support.train(batch.groups, save_checkpoint=run.settings.save_checkpoint and is_eval_due)
        finally:
            run.status.note_training_end()
        trainer_s = time.monotonic() - began
        logger.log(self._step_log_level, "train call ended: step=%d took_s=%.2f", result.step, trainer_s)
        if result.step <= old_step:
            raise TrainingError(f"after training on step {old_step} the backend says it is at step {result.step}")

        state.policy_version = state.next_training_step = result.step
        run.batch_step, run.batch_offsets = None, ()
        run.source.finish(batch.offsets)
        await run.notify()
        if is_eval_due:
            self._evals.schedule(result.step)
        await run.save()
        run.activity.enter(NAME, f"logging step {result.step}")
        await self._log(batch, result.step, result.metrics, trainer_s=trainer_s, idle_s=idle_s)
        await self._keeper.step_saved(result)

    async def _log(
        self, batch: Batch, step: int, backend_metrics: dict[str, float], *, trainer_s: float, idle_s: float
    ) -> None:
        run, now = self._run, time.monotonic()
        staleness = steps_off_policy(batch.groups, step)
        actor_s = sum(finished.rollout_s for finished in batch.finished)
        metrics = {
            "discarded_stale_groups": float(run.state.discarded_stale_groups),
            "steps_off_policy": sum(staleness) / len(staleness) if staleness else 0.0,
            "time/step_wall_s": now - self._step_began,
            "time/step_trainer_s": trainer_s,
            "throughput/step_trainer_idle_s": idle_s,
            "throughput/step_actor_idle_s": sum(finished.idle_s for finished in batch.finished),
            "pipeline/max_steps_off_policy": float(max(staleness, default=0)),
            "pipeline/discarded_zero_variance_groups": float(self.batcher.zero_variance_groups),
            "pipeline/failed_groups": float(self._rollouts.failures.total),
            "pipeline/queued_groups": float(len(run.queue)),
            **run.status.metrics(),
        }
        if actor_s > 0:
            metrics["time/step_actor_s"] = actor_s
        wall_s, self._step_began = now - self._step_began, now
        run.status.note_idle_times(trainer_idle_s=idle_s, wall_s=wall_s, steps_off_policy=metrics["steps_off_policy"])
        run.status.note_training_batch(batch.groups, step=step, step_seconds=wall_s)
        run.status.log_if_due()
        await run.model.log(batch.groups, TRAIN_SPLIT, metrics={**metrics, **backend_metrics}, step=step)
        await self._log_discards()

    async def _log_discards(self) -> None:
        discards = self.batcher.take_discards()
        if discards:
            await self._run.model.log(discards, DISCARDED_SPLIT, step=self._run.state.policy_version)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
