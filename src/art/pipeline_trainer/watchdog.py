"""End a run that no longer gets on, with a report of what every part is doing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from art.errors import PipelineStalledError
from art.pipeline_trainer.run import PipelineRun

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
CHECKS_PER_LIMIT = 8
# The server's monitor has one token generated now and then; rollouts that get on are faster than that.
MIN_TOKENS_PER_S = 1.0


class Watchdog:
    """Looks whether the server was given up, and whether anything happens.

    Args:
        run: The run.
        on_done: Called when somebody has set `state.done`.
        report: Gives the report.
    """

    def __init__(self, run: PipelineRun, *, on_done: Callable[[], None], report: Callable[[], str]) -> None:
        self._run = run
        self._on_done = on_done
        self._report = report
        self._work: tuple[float, float, float] | None = None  # time, tokens, rows

    async def run(self) -> None:
        """Look until cancelled.

        Raises:
            PipelineStalledError: Nothing happened for `stall_timeout_s`.
            LocalServingUnavailableError: The server was given up.
        """
        limit_s = self._run.settings.stall_timeout_s
        interval_s = CHECK_INTERVAL_S if limit_s is None else min(CHECK_INTERVAL_S, limit_s / CHECKS_PER_LIMIT)
        while True:
            await asyncio.sleep(interval_s)
            if self._run.state.done:
                self._on_done()
            error = self._run.support.serving_error()
            if error is not None:
                raise error
            if limit_s is not None:
                await self._check(limit_s)

    async def _check(self, limit_s: float) -> None:
        activity = self._run.activity
        quiet_s = time.monotonic() - activity.changed_at
        if quiet_s < limit_s / 2:
            self._work = None
            return
        if self._run.support.is_recovering() or await self._has_worked(limit_s / CHECKS_PER_LIMIT):
            activity.touch()
            return
        quiet_s = time.monotonic() - activity.changed_at
        if quiet_s < limit_s:
            return
        report = self._report()
        message = f"the pipeline made no progress for {quiet_s:.0f} s (limit: stall_timeout_s={limit_s:g})"
        logger.error("%s:\n%s", message, report)
        raise PipelineStalledError(f"{message}:\n{report}", report=report, waited_s=quiet_s)

    async def _has_worked(self, interval_s: float) -> bool:
        """Tell whether tokens or rows were processed since the last look, some time ago."""
        now = time.monotonic()
        if self._work is not None and now - self._work[0] < interval_s:
            return False
        before, counts = self._work, await self._run.support.work_done()
        self._work = (now, *counts)
        if before is None:
            return False
        elapsed_s, tokens, rows = (new - old for new, old in zip(self._work, before, strict=True))
        return rows > 0 or tokens > MIN_TOKENS_PER_S * elapsed_s
