"""Delete the checkpoints that nobody needs, as the run's strategy says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from art.checkpoints import checkpoint_dir, list_steps
from art.model.history import HistoryTail
from art.model.run_log import HISTORY_FILE
from art.pipeline_trainer.checkpoint_retention import (
    CHECKPOINT_CREATED_AT_METRIC,
    CHECKPOINT_EVAL_COMPLETED_METRIC,
    CHECKPOINT_SAVED_METRIC,
    CheckpointInfo,
    CheckpointRetentionContext,
)
from art.pipeline_trainer.run import PipelineRun

logger = logging.getLogger(__name__)

CHECKPOINT_SPLIT = "checkpoint"


class CheckpointKeeper:
    """Notes which checkpoints there are, and deletes some of them.

    Args:
        run: The run.
    """

    def __init__(self, run: PipelineRun) -> None:
        self._run = run
        self._last_step = run.start_step
        self._history = HistoryTail(self._model_dir / HISTORY_FILE)
        self._numbers: dict[int, dict[str, list[float]]] = {}  # of the steps that have a checkpoint, or will have one

    async def step_saved(self, result: Any) -> None:
        """Note that a step was saved, and clean up when that is due.

        Args:
            result: What the backend's `train` returned.
        """
        step: int = result.step
        path = getattr(result, "checkpoint_path", None) or checkpoint_dir(self._model_dir, step)
        if await asyncio.to_thread(Path(path).is_dir):
            await self._note(step, {CHECKPOINT_SAVED_METRIC: 1.0, CHECKPOINT_CREATED_AT_METRIC: time.time()})
        if step - self._last_step >= self._run.settings.checkpoint_retention_interval:
            self._last_step = step
            await self._clean_up()

    async def step_evaluated(self, step: int) -> None:
        """Note that a step's evaluation has ended."""
        await self._note(step, {CHECKPOINT_EVAL_COMPLETED_METRIC: 1.0})

    def protected_steps(self) -> set[int]:
        """List the steps that are served, held by a rollout, or evaluated now or later."""
        run = self._run
        return {run.state.policy_version, *run.leased_steps, *run.pending_evals}

    async def _clean_up(self) -> None:
        run, strategy = self._run, self._run.settings.checkpoint_retention_strategy
        if strategy is None:
            return
        try:
            infos = await asyncio.to_thread(self._list)
            eligible = [info for info in infos if info.step not in self.protected_steps()]
            wanted = set(
                strategy(CheckpointRetentionContext(current_step=run.state.policy_version, checkpoints=eligible))
            )
        except Exception:
            logger.exception("the checkpoint retention strategy failed: nothing is deleted")
            return
        doomed = {info.step for info in eligible} - wanted - self.protected_steps()
        if not doomed:
            return
        keep = {info.step for info in infos} - doomed | self.protected_steps()
        window = range(run.state.policy_version - run.settings.max_steps_off_policy, run.state.policy_version + 1)
        try:
            await run.support.unload_adapters((keep | set(window)) - doomed)
            await run.support.delete_checkpoints(keep)
        except Exception:
            if run.support.serving_error() is not None:
                raise
            logger.exception("checkpoints that may go were not deleted: steps=%s", sorted(doomed))
            return
        logger.info("checkpoints that may go: steps=%s kept=%s", sorted(doomed), sorted(keep))

    def _list(self) -> list[CheckpointInfo]:
        """Blocks."""
        steps = list_steps(self._model_dir)
        self._read_history(steps)
        infos = []
        for step in steps:
            metrics = {key: fmean(values) for key, values in self._numbers.get(step, {}).items()}
            path = checkpoint_dir(self._model_dir, step)
            created_s = metrics.get(CHECKPOINT_CREATED_AT_METRIC) or path.stat().st_mtime
            infos.append(
                CheckpointInfo(
                    step=step,
                    path=str(path),
                    created_at=datetime.fromtimestamp(created_s, UTC),
                    is_eval_step=CHECKPOINT_EVAL_COMPLETED_METRIC in metrics,
                    metrics=metrics,
                )
            )
        return infos

    def _read_history(self, steps: Collection[int]) -> None:
        for step, numbers in self._history.read().items():
            known = self._numbers.setdefault(step, {})
            for metric, values in numbers.items():
                known.setdefault(metric, []).extend(values)
        newest = max(steps, default=0)
        for gone in [step for step in self._numbers if step < newest and step not in steps]:
            del self._numbers[gone]

    async def _note(self, step: int, metrics: dict[str, float]) -> None:
        numbers = {key.removeprefix(f"{CHECKPOINT_SPLIT}/"): value for key, value in metrics.items()}
        await asyncio.to_thread(self._run.model._log_metrics, numbers, CHECKPOINT_SPLIT, step)

    @property
    def _model_dir(self) -> Path:
        return self._run.model._model_dir()
