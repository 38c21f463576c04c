"""Notice that an inference server no longer serves, while nobody is asking it anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from art.errors import LocalServingUnavailableError
from art.inference.runtime import InferenceRuntime

logger = logging.getLogger(__name__)

MAX_FAILED_CHECKS = 3
RECHECK_S = 5.0  # after a failed check; with the limit above, faults of 10 s and less are waited out
HEAD_START_S = 0.5  # of the question for progress, which a server that lives answers in milliseconds


class ServingMonitor:
    """Checks a server's health at intervals; one that is answering requests, or has yielded to the trainer, is left
    alone.

    Args:
        runtime: What is watched.
        interval_s: Time between two checks.
        on_failure: Awaited with the diagnosis after three failed checks in a row; checking goes on afterwards.
    """

    def __init__(
        self,
        runtime: InferenceRuntime,
        *,
        interval_s: float,
        on_failure: Callable[[LocalServingUnavailableError], Awaitable[None]],
    ) -> None:
        self._runtime = runtime
        self._interval_s = interval_s
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._processed: float | None = None
        self._failed = 0
        self._reported = ""

    def start(self) -> None:
        """Begin checking."""
        self._task = asyncio.create_task(self._watch(), name="serving-monitor")

    async def stop(self) -> None:
        """End checking and wait for it. Does nothing when called from the failure handler itself."""
        task, self._task = self._task, None
        if task is None or task is asyncio.current_task():
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(self._interval_s, RECHECK_S) if self._failed else self._interval_s)
            try:
                if not await self._runtime.is_sleeping():
                    await self._check()
            except LocalServingUnavailableError as err:
                await self._note_failure(err)
            except Exception as err:
                logger.exception("health check broke")
                await self._note_failure(LocalServingUnavailableError(f"health check broke: {err!r}"))
            else:
                self._failed = 0

    async def _check(self) -> None:
        """Look for progress, and ask for a token where none is seen.

        Both wait at the same time: a server that answers nothing is found after one time-out, not after one for each.
        """
        getting_on = asyncio.ensure_future(self._is_busy_and_getting_on())
        try:
            await asyncio.wait({getting_on}, timeout=HEAD_START_S)
            if getting_on.done() and getting_on.result():
                return  # a completion would only wait behind the others
            try:
                await self._runtime.check_health()
            except LocalServingUnavailableError:
                if not (getting_on.done() and getting_on.result()):
                    raise
        finally:
            getting_on.cancel()
            await asyncio.gather(getting_on, return_exceptions=True)

    async def _is_busy_and_getting_on(self) -> bool:
        processed = await self._runtime.progress_count()
        if processed is None:
            return False
        before, self._processed = self._processed, processed
        try:
            return processed != before and bool(await self._runtime.requests_in_flight())
        except LocalServingUnavailableError:
            return False  # the check of its health says more

    async def _note_failure(self, error: LocalServingUnavailableError) -> None:
        self._failed += 1
        if str(error) == self._reported:
            return  # given up already, and nothing has changed since
        headline = str(error).partition("\n")[0]  # whoever acts on the last one logs the rest
        logger.warning("health check failed: %d of %d in a row: %s", self._failed, MAX_FAILED_CHECKS, headline)
        if self._failed < MAX_FAILED_CHECKS:
            return
        self._failed, self._reported = 0, str(error)
        try:
            await self._on_failure(error)
        except Exception:
            logger.exception("the handler of a failed server failed")
