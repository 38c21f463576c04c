"""`PipelineTrainer`: rollouts, training and evaluations at the same time, with a bound on how old data may be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
from collections.abc import AsyncIterator, Iterable
from typing import Any, Generic

from art.backend import Backend
from art.model.state import PIPELINE_STATE_KEY
from art.pipeline_trainer.activity import Activity
from art.pipeline_trainer.backend_support import BackendSupport
from art.pipeline_trainer.checkpoint_retention import CheckpointRetentionStrategy
from art.pipeline_trainer.eval_stage import EvalStage
from art.pipeline_trainer.exclusive import only_pipeline_of
from art.pipeline_trainer.group_queue import GroupQueue
from art.pipeline_trainer.group_rollouts import make_group_rollout_fn
from art.pipeline_trainer.retention import CheckpointKeeper
from art.pipeline_trainer.rollout_stage import RolloutStage
from art.pipeline_trainer.run import PipelineRun
from art.pipeline_trainer.scenarios import ScenarioSource
from art.pipeline_trainer.settings import (
    DEFAULT_BATCH_FACTOR,
    MIN_FAILED_GROUPS,
    PipelineSettings,
    TrainOptions,
    resolve_start_evaluation,
)
from art.pipeline_trainer.signals import stop_on_signals
from art.pipeline_trainer.state import PipelineState, SavedProgress
from art.pipeline_trainer.status import StatusReporter
from art.pipeline_trainer.supervisor import Supervisor
from art.pipeline_trainer.training_stage import TrainingStage
from art.pipeline_trainer.types import AnyTrainableModel, ConfigT, EvalFn, RolloutFn, ScenarioT

__all__ = ["PIPELINE_STATE_KEY", "PipelineTrainer", "make_group_rollout_fn"]

logger = logging.getLogger(__name__)

STALL_TIMEOUT_S = 1800.0  # longer than a server may take to start again, and than a client waits for an answer


class PipelineTrainer(Generic[ScenarioT, ConfigT]):
    """Trains a model on scenarios: workers run rollouts while earlier ones are trained and steps are evaluated.

    Attributes:
        state: The progress; see `PipelineState`.
        collapsed: Whether the last run ended because the rewards within too many groups were equal.
    """

    def __init__(
        self,
        model: AnyTrainableModel,
        backend: Backend,
        rollout_fn: RolloutFn[ScenarioT, ConfigT],
        scenarios: AsyncIterator[ScenarioT] | Iterable[ScenarioT],
        config: ConfigT,
        eval_fn: EvalFn[ConfigT] | None = None,
        *,
        num_rollout_workers: int = 16,
        min_batch_size: int = 4,
        max_batch_size: int | None = None,
        max_steps_off_policy: int = 4,
        queue_maxsize: int | None = None,
        learning_rate: float = 1e-5,
        loss_fn: str = "cispo",
        loss_fn_config: dict[str, Any] | None = None,
        normalize_advantages: bool = True,
        adam_params: object | None = None,
        packed_sequence_length: int | None = None,
        max_steps: int | None = None,
        discard_queue_multiplier: int = 100,
        log_interval_seconds: float = 60.0,
        status_ewa_alpha: float = 0.2,
        total_scenarios: int | None = None,
        eval_every_n_steps: int = 20,
        eval_step_0: bool | None = None,
        eval_at_start: bool | None = None,
        save_checkpoint: bool = True,
        checkpoint_retention_strategy: CheckpointRetentionStrategy | None = None,
        checkpoint_retention_interval: int = 1,
        resume: bool = True,
        stall_timeout_s: float | None = STALL_TIMEOUT_S,
        rollout_timeout_s: float | None = None,
        max_failed_groups: int | None = None,
        max_scenario_attempts: int = 2,
    ) -> None:
        """Make a trainer; `train` starts it.

        Args:
            model: A registered model.
            backend: The backend that it is registered with.
            rollout_fn: Makes a group of a scenario; see `make_group_rollout_fn`.
            scenarios: What rollouts are about; may be endless. A run that is to be resumed needs the same order again.
            config: Handed to `rollout_fn` and `eval_fn`.
            eval_fn: Evaluates a step.
            num_rollout_workers: How many groups are being made at once.
            min_batch_size: Groups that a step is trained on at least, but for the last one.
            max_batch_size: And at most; None: ten times `min_batch_size`.
            max_steps_off_policy: How many steps the answers in a group may be behind the model that it is to train.
            queue_maxsize: Groups that wait for training; None: `max_steps_off_policy` times `max_batch_size`.
            learning_rate: Handed to the backend, like the next five.
            loss_fn: "cispo" or "ppo", and what else the backend has.
            loss_fn_config: Settings of the loss.
            normalize_advantages: Divide advantages by the standard deviation of their group's rewards.
            adam_params: Settings of the optimizer.
            packed_sequence_length: Tokens of a packed row.
            max_steps: Steps of each call of `train`; None: until the scenarios end.
            discard_queue_multiplier: Training ends once so many times `min_batch_size` groups without variance have
                come since the last step.
            log_interval_seconds: Time between two lines of status.
            status_ewa_alpha: Weight of the newest step in the averages of the status.
            total_scenarios: How many scenarios there are, for the status.
            eval_every_n_steps: Steps from one evaluation to the next; 0: none but at the start.
            eval_step_0: Evaluate the untrained model; on by default.
            eval_at_start: Evaluate whatever step a run starts from, unless that was done.
            save_checkpoint: Handed to the backend at steps that are evaluated.
            checkpoint_retention_strategy: Decides which checkpoints stay, as `keep_recent_and_top()`; None: all.
            checkpoint_retention_interval: Steps from one such decision to the next.
            resume: Go on where an earlier run of this model was.
            stall_timeout_s: A run ends with `PipelineStalledError` when nothing happens for so long; None: never.
            rollout_timeout_s: A rollout that takes longer counts as failed; None: no limit.
            max_failed_groups: A run ends when so many groups in a row fail; None: twice the number of workers, and
                ten at least.
            max_scenario_attempts: How often a scenario is tried whose rollout fails.

        Raises:
            ConfigurationError: A number is out of range, or two settings contradict each other.
        """
        self.model = model
        self.backend = backend
        self.rollout_fn = rollout_fn
        self.config = config
        self.eval_fn = eval_fn
        self.scenarios = scenarios
        self.num_rollout_workers = num_rollout_workers
        self.min_batch_size = min_batch_size
        self.max_batch_size = DEFAULT_BATCH_FACTOR * min_batch_size if max_batch_size is None else max_batch_size
        self.max_steps_off_policy = max_steps_off_policy
        self.queue_maxsize = (
            max(1, max_steps_off_policy * self.max_batch_size) if queue_maxsize is None else queue_maxsize
        )
        self.learning_rate = learning_rate
        self.loss_fn = loss_fn
        self.loss_fn_config = loss_fn_config
        self.normalize_advantages = normalize_advantages
        self.adam_params = adam_params
        self.packed_sequence_length = packed_sequence_length
        self.max_steps = max_steps
        self.discard_queue_multiplier = discard_queue_multiplier
        self.log_interval_seconds = log_interval_seconds
        self.status_ewa_alpha = status_ewa_alpha
        self.total_scenarios = total_scenarios
        self.eval_every_n_steps = eval_every_n_steps
        self.eval_step_0, self.eval_at_start = resolve_start_evaluation(eval_step_0, eval_at_start)
        self.save_checkpoint = save_checkpoint
        self.checkpoint_retention_strategy = checkpoint_retention_strategy
        self.checkpoint_retention_interval = checkpoint_retention_interval
        self.resume = resume
        self.stall_timeout_s = stall_timeout_s
        self.rollout_timeout_s = rollout_timeout_s
        self.max_failed_groups = (
            max(MIN_FAILED_GROUPS, 2 * num_rollout_workers) if max_failed_groups is None else max_failed_groups
        )
        self.max_scenario_attempts = max_scenario_attempts
        self.state = PipelineState()
        self.collapsed = False
        PipelineSettings.of(self)
        self._make_status()
        self._source: ScenarioSource[ScenarioT] | None = None
        self._last_progress: SavedProgress | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stop_requested = False
        self._interrupt: signal.Signals | None = None

    async def train(self, *, handle_signals: bool = True) -> None:
        """Run until `max_steps` are done, the scenarios end, or a stop is asked for.

        A second call goes on where the first one ended, with `max_steps` more steps.

        Args:
            handle_signals: Have SIGINT and SIGTERM ask for a stop; a second one cancels.

        Raises:
            ConfigurationError: The backend cannot do what was asked for.
            LocalServingUnavailableError: The inference server was given up; the error carries the diagnosis.
            TooManyRolloutFailuresError: Too many groups in a row failed, or all did.
            PipelineStalledError: Nothing happened for `stall_timeout_s`; the error says what every part was doing.
            KeyboardInterrupt: A second SIGINT came.
            RuntimeError: The trainer is running already, or another one of the same model.
            DataError: The model's `state.json` is broken.
        """
        if self._task is not None:
            raise RuntimeError("this trainer is running already: await its first train() before you call it again")
        self._task = asyncio.current_task()
        self._interrupt = None
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(only_pipeline_of(self.model._model_dir()))
                if handle_signals:
                    stack.enter_context(stop_on_signals(self._on_signal))
                await self._train()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._interrupt != signal.SIGINT or task is None:
                raise
            task.uncancel()
            raise KeyboardInterrupt from None
        finally:
            self.state.done = True
            self._task = self._stop = self._loop = None
            self._is_stop_requested = False

    def request_stop(self) -> None:
        """Ask a running trainer to end soon, or the next `train` to return at once; may be called in any thread.

        Running rollouts are cut off, and handed out again when the run is resumed. The groups that are waiting are
        trained once more, and evaluations that are scheduled end.
        """
        self._is_stop_requested = True
        self.state.done = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    async def _train(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._is_stop_requested:
            logger.info("a stop was requested before the start: nothing is trained")
            return
        run, left_over, is_resumed = await self._begin()
        keeper = CheckpointKeeper(run)
        rollouts, evals = RolloutStage(run, self.rollout_fn), EvalStage(run, self.eval_fn, keeper)
        training = TrainingStage(run, rollouts, evals, keeper)
        supervisor = Supervisor(run, rollouts, training, evals, self._stop)
        has_failed = True
        try:
            evals.schedule_first(left_over, is_resumed=is_resumed)
            run.status.start(initial_step=run.start_step)
            await supervisor.run()
            has_failed = False
        finally:
            try:
                if supervisor.has_training_ended:
                    await run.settle()
            finally:
                self.collapsed = training.batcher.collapsed
                self._last_progress = run.progress()
                run.status.flush()
                run.status.close()
                run.save_at_end(has_failed=has_failed)

    async def _begin(self) -> tuple[PipelineRun, tuple[int, ...], bool]:
        """Find out where the run starts."""
        support = BackendSupport(self.model, self.backend, TrainOptions.of(self))
        support.check()
        start_step = await support.newest_step(limit_s=self.stall_timeout_s)
        progress, is_resumed = self._load_progress(start_step)
        _warn_of_other_name(support.current_name(), start_step)
        state = self.state
        state.policy_version = state.next_training_step = start_step
        state.last_eval_step = progress.last_eval_step
        state.completed_eval_steps = set(progress.completed_eval_steps)
        state.discarded_stale_groups = 0
        state.policy_updated = asyncio.Condition()
        state.done = self._is_stop_requested
        assert self._source is not None
        run = PipelineRun(
            model=self.model,
            config=self.config,
            support=support,
            settings=PipelineSettings.of(self),
            state=state,
            source=self._source,
            queue=GroupQueue(self.queue_maxsize),
            status=self._make_status(),
            activity=Activity(),
            start_step=start_step,
            consumed_before=progress.total_scenarios_consumed - progress.scenario_offset,
        )
        run.count_scenarios()
        return run, progress.pending_eval_steps, is_resumed

    def _load_progress(self, start_step: int) -> tuple[SavedProgress, bool]:
        """Give the progress so far, and whether there was any; prepares the scenarios accordingly."""
        if self._source is not None and self._last_progress is not None:  # of an earlier call
            before = self._last_progress
            progress = before.settled(start_step)
            self._source.finish(set(before.unfinished_offsets) - set(progress.unfinished_offsets))
            self._source.restart()
            return progress, True
        self._source = ScenarioSource(self.scenarios, max_attempts=self.max_scenario_attempts)
        stored = (self.model.read_state() or {}).get(PIPELINE_STATE_KEY) if self.resume else None
        if stored is None:
            return SavedProgress(training_step=start_step), False
        progress = SavedProgress.from_json(stored).settled(start_step)
        self._source.resume(progress.scenario_offset, progress.unfinished_offsets)
        logger.info(
            "resuming: step=%d scenarios_handed_out=%d unfinished=%d",
            start_step,
            progress.scenario_offset,
            len(progress.unfinished_offsets),
        )
        return progress, True

    def _on_signal(self, number: signal.Signals, count: int) -> None:
        if count == 1:
            logger.warning("%s: stopping after the current step and evaluations; once more cancels", number.name)
            self.request_stop()
            return
        logger.warning("%s: cancelling", number.name)
        self._interrupt = number
        if self._task is not None:
            self._task.cancel()

    def _make_status(self) -> StatusReporter:
        return StatusReporter(
            get_scenario_offset=lambda: self.state.scenario_offset,
            log_interval_seconds=self.log_interval_seconds,
            status_ewa_alpha=self.status_ewa_alpha,
            total_scenarios=self.total_scenarios,
            num_workers=self.num_rollout_workers,
        )


def _warn_of_other_name(name: str | None, step: int) -> None:
    match = re.fullmatch(r".+@(\d+)", name or "")
    if match is not None and int(match.group(1)) != step:
        logger.warning("the newest step is %d, but the server answers as %s", step, name)
