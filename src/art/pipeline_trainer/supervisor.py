"""Run the stages of a pipeline together, and end them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from art.errors import PipelineStalledError
from art.pipeline_trainer.eval_stage import EvalStage
from art.pipeline_trainer.loop_watch import LoopWatch
from art.pipeline_trainer.rollout_stage import RolloutStage
from art.pipeline_trainer.run import PipelineRun
from art.pipeline_trainer.training_stage import TrainingStage
from art.pipeline_trainer.watchdog import Watchdog

logger = logging.getLogger(__name__)

STATUS_INTERVAL_S = 0.25
END_LIMIT_S = 30.0  # for what a cancelled rollout or evaluation still has to tidy up
STEP_END_LIMIT_S = 150.0  # for a cancelled step, which a backend may have to end in another process

TRAINING = "training"


class Supervisor:
    """Owns every task of a run.

    Args:
        run: The run.
        rollouts: Its rollouts.
        training: Its training.
        evals: Its evaluations.
        stop: Set when no further rollouts are wanted.
    """

    def __init__(
        self,
        run: PipelineRun,
        rollouts: RolloutStage,
        training: TrainingStage,
        evals: EvalStage,
        stop: asyncio.Event,
    ) -> None:
        self._run = run
        self._rollouts = rollouts
        self._training = training
        self._evals = evals
        self._stop = stop
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until training and evaluations have ended.

        Raises:
            Exception: The first failure of a stage, as it is.
            PipelineStalledError: Nothing got on, or something did not end.
        """
        watchdog = Watchdog(self._run, on_done=self._stop.set, report=self.report)
        rollouts = self._start("rollouts", self._rollouts.run())
        training = self._start(TRAINING, self._training.run())
        evals = self._start("evaluation", self._evals.run())
        self._start("status", self._show_status())
        self._start("watchdog", watchdog.run())
        self._start("loop watch", LoopWatch(self.report).run())
        stop = self._start("stop", self._wait_for_stop())
        is_closed = False
        try:
            while not (training.done() and evals.done()):
                pending = [task for task in self._tasks.values() if not task.done()]
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                self._raise_failure()
                if stop.done() or training.done():
                    self._run.state.done = True
                    _cancel_once(rollouts)
                if stop.done() or rollouts.done():
                    self._run.queue.close()
                if training.done() and not is_closed:
                    is_closed = True
                    self._evals.close()
        except BaseException:
            await self._end()
            raise
        left = await self._end()
        if left:
            raise PipelineStalledError(
                f"did not end within {END_LIMIT_S:g} s: {', '.join(left)}\n{self.report()}", report=self.report()
            )

    @property
    def has_training_ended(self) -> bool:
        """Whether no step is being trained any more."""
        training = self._tasks.get(TRAINING)
        return training is None or training.done()

    def report(self) -> str:
        """Say what every part is doing."""
        waits = [f"  {line}" for line in self._rollouts.where_rollouts_wait()]
        return "\n".join([self._run.report(), *waits])

    def _start(self, name: str, stage: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._tasks[name] = asyncio.create_task(stage, name=f"pipeline-{name}")
        return self._tasks[name]

    def _raise_failure(self) -> None:
        failures = [
            (name, error)
            for name, task in self._tasks.items()
            if task.done() and not task.cancelled() and (error := task.exception()) is not None
        ]
        for name, error in failures[1:]:
            logger.error("the %s stage failed too: %r", name, error)
        if failures:
            raise _single(failures[0][1])

    async def _end(self) -> list[str]:
        """Cancel what still runs; return the names of what did not end."""
        for task in self._tasks.values():
            _cancel_once(task)
        running = [task for task in self._tasks.values() if not task.done()]
        if running:
            await asyncio.wait(running, timeout=END_LIMIT_S)
        if not self.has_training_ended:
            logger.warning("waiting for the step that is being trained to end, at most %g s more", STEP_END_LIMIT_S)
            await asyncio.wait([self._tasks[TRAINING]], timeout=STEP_END_LIMIT_S)
        left = [name for name, task in self._tasks.items() if not task.done()]
        if left:
            logger.error("cancelled, but not ended within %g s: %s\n%s", END_LIMIT_S, ", ".join(left), self.report())
        for name, task in self._tasks.items():
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                logger.debug("the %s stage ended with %r", name, error)
        return left

    async def _show_status(self) -> None:
        while True:
            self._run.status.log_if_due()
            await asyncio.sleep(STATUS_INTERVAL_S)

    async def _wait_for_stop(self) -> None:
        await self._stop.wait()
        logger.info("stopping: rollouts are cut off, what is queued is trained, and evaluations end")


def _cancel_once(task: asyncio.Task[None]) -> None:
    """Cancel a task, unless it is tidying up already."""
    if not task.cancelling():
        task.cancel()


def _single(error: BaseException) -> BaseException:
    """Give the only member of a group as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
