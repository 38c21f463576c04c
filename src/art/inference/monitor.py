"""Notice that an inference server no longer serves, while nobody is asking it anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from art.errors import LocalServingUnavailableError
from art.inference.runtime import InferenceRuntime

logger = logging.getLogger(__name__)

MAX_FAILED_CHECKS = 3


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
        failed = 0
        processed: float | None = None
        while True:
            await asyncio.sleep(self._interval_s)
            if await self._runtime.is_sleeping():
                continue
            try:
                before, processed = processed, await self._runtime.progress_count()
                if await self._runtime.requests_in_flight() and processed is not None and processed != before:
                    failed = 0  # busy and getting on: a completion would only wait behind the others
                    continue
                await self._runtime.check_health()
            except LocalServingUnavailableError as err:
                failed += 1
                logger.warning("health check failed: %d of %d in a row: %s", failed, MAX_FAILED_CHECKS, err)
                if failed >= MAX_FAILED_CHECKS:
                    failed = 0
                    await self._on_failure(err)
            else:
                failed = 0
