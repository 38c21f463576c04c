"""Evaluate steps, one at a time, while training goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from art.gather_context import find_fatal_error
from art.model.answers import noting_answers
from art.pipeline_trainer.facts import mean_reward, note_adapter_names, note_versions
from art.pipeline_trainer.retention import CheckpointKeeper
from art.pipeline_trainer.run import PipelineRun
from art.pipeline_trainer.types import EvalFn
from art.trajectories import Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)

VAL_SPLIT = "val"
FAILED_KEY = "eval_failed"
EVAL_TIME_KEY = "time/step_eval_s"

T = TypeVar("T")


class EvalStage:
    """Runs evaluations in the order in which they were scheduled.

    From then until its evaluation has ended, a step stays served and its checkpoint stays on disk.

    Args:
        run: The run.
        eval_fn: Evaluates a step; None: nothing is ever due.
        keeper: Told what has been evaluated.
    """

    def __init__(self, run: PipelineRun, eval_fn: EvalFn[Any] | None, keeper: CheckpointKeeper) -> None:
        self._run = run
        self._eval_fn = eval_fn
        self._keeper = keeper
        self._scheduled: asyncio.Queue[int | None] = asyncio.Queue()
        self._turn = asyncio.Lock()

    def is_due(self, step: int) -> bool:
        """Tell whether a step is to be evaluated."""
        every = self._run.settings.eval_every_n_steps
        is_done = step in self._run.state.completed_eval_steps or step in self._run.pending_evals
        return (
            self._eval_fn is not None and every > 0 and not is_done and step - self._run.state.last_eval_step >= every
        )

    def schedule_first(self, left_over: tuple[int, ...], *, is_resumed: bool) -> None:
        """Schedule what an earlier run left over, and the step that this one begins with if that is wanted.

        Args:
            left_over: Steps whose evaluation was scheduled or running when that run ended.
            is_resumed: Whether there was such a run, so that it is known which step was evaluated last.
        """
        if self._eval_fn is None:
            return
        run, settings = self._run, self._run.settings
        step = run.start_step
        for pending in left_over:
            if pending <= step:
                self.schedule(pending)
        is_wanted = settings.eval_step_0 if step == 0 else settings.eval_at_start
        is_done = step in run.state.completed_eval_steps or step in run.pending_evals
        if (is_resumed and self.is_due(step)) or (is_wanted and not is_done):
            self.schedule(step)

    def schedule(self, step: int) -> None:
        """Have a step evaluated once those before it are."""
        run = self._run
        run.pending_evals.add(step)
        run.state.last_eval_step = max(run.state.last_eval_step, step)
        self._scheduled.put_nowait(step)

    def close(self) -> None:
        """Note that nothing more will be scheduled."""
        self._scheduled.put_nowait(None)

    async def run(self) -> None:
        """Run evaluations until the last one has ended, after `close`.

        Raises:
            LocalServingUnavailableError: The server was given up.
        """
        async with asyncio.TaskGroup() as evaluations:
            while (step := await self._scheduled.get()) is not None:
                evaluations.create_task(self._evaluate(step), name=f"pipeline-eval-{step}")

    async def _evaluate(self, step: int) -> None:
        run, name = self._run, f"evaluation of step {step}"
        run.activity.enter(name, "waiting for its adapter")
        try:
            async with run.support.lease(step) as adapter_name:
                run.activity.enter(name, "waiting for its turn")
                async with self._turn:
                    run.activity.enter(name, "running")
                    await self._run_one(step, adapter_name or "")
            run.state.completed_eval_steps.add(step)
            await self._keeper.step_evaluated(step)
        except Exception as err:
            fatal = find_fatal_error(err) or run.support.serving_error()
            if fatal is not None:
                raise fatal from None
            logger.exception("evaluation failed: step=%d", step)
            await run.model.log(split=VAL_SPLIT, metrics={FAILED_KEY: 1.0}, step=step)
        finally:
            run.activity.leave(name)
        run.pending_evals.discard(step)
        await run.save()

    async def _run_one(self, step: int, adapter_name: str) -> None:
        run = self._run
        assert self._eval_fn is not None
        run.status.note_val_started(step)
        began = time.monotonic()
        token = run.model.activate_metrics_context("eval")
        reward: float | None = None
        try:
            with noting_answers(run.activity.touch) as answers:
                result = await _uncancelled(self._eval_fn(run.model, step, run.config))
            splits = {VAL_SPLIT: result} if not isinstance(result, dict) else result
            groups_by_split = {split: as_groups(items) for split, items in splits.items()}
            for groups in groups_by_split.values():
                trajectories = [trajectory for group in groups for trajectory in group.trajectories]
                note_versions(trajectories, step, step)
                note_adapter_names(trajectories, answers.counts, adapter_name)
            reward = mean_reward(groups_by_split.get(VAL_SPLIT, []))
            await self._log(step, groups_by_split, time.monotonic() - began)
        finally:
            token.var.reset(token)
            run.status.note_val_finished(step, reward)

    async def _log(self, step: int, groups_by_split: dict[str, list[TrajectoryGroup]], took_s: float) -> None:
        metrics = {EVAL_TIME_KEY: took_s}
        for split, groups in groups_by_split.items():
            if groups:
                await self._run.model.log(groups, split, metrics=metrics, step=step)
                metrics = {}
        if metrics:
            await self._run.model.log(split=VAL_SPLIT, metrics=metrics, step=step)


async def _uncancelled(evaluation: Awaitable[T]) -> T:
    """Await, and have a cancellation that nobody asked for count as a failure."""
    try:
        return await evaluation
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the evaluation was cancelled from within") from None


def as_groups(items: list[Trajectory | TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Put loose trajectories into one group, after the groups.

    Raises:
        TypeError: Something else is among the items.
    """
    if not isinstance(items, list):
        raise TypeError(f"an evaluation gives lists of trajectories and groups, not a {type(items).__name__}")
    strange = {type(item).__name__ for item in items if not isinstance(item, Trajectory | TrajectoryGroup)}
    if strange:
        raise TypeError(f"an evaluation gives trajectories and groups, not {', '.join(sorted(strange))}")
    groups = [item for item in items if isinstance(item, TrajectoryGroup)]
    loose = [item for item in items if isinstance(item, Trajectory)]
    return [*groups, TrajectoryGroup(loose)] if loose else groups
