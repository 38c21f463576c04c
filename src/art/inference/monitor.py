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
    """Checks a server's health at intervals; while requests are being answered or the engine is yielded it leaves it alone.

    Args:
        runtime: What is watched.
        interval_s: Time between two checks.
        on_failure: Awaited once, with the diagnosis, after three failed checks in a row.
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
        while True:
            await asyncio.sleep(self._interval_s)
            if await self._runtime.is_sleeping():
                continue
            try:
                if await self._runtime.requests_in_flight():
                    failed = 0
                    continue
                await self._runtime.check_health()
            except LocalServingUnavailableError as err:
                failed += 1
                logger.warning("health check failed: %d of %d in a row: %s", failed, MAX_FAILED_CHECKS, err)
                if failed >= MAX_FAILED_CHECKS:
                    await self._on_failure(err)
                    return
            else:
                failed = 0
