"""Small tools for tasks that must not be left half done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def uninterrupted(work: Awaitable[T]) -> T:
    """Run clean-up to its end even when the caller is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as err:
            if task.cancelled():
                raise
            cancelled = err
        except Exception:  # noqa: BLE001 - raised below, from the task
            break
    if cancelled is not None:
        if not task.cancelled() and task.exception() is not None:
            logger.warning("clean-up failed while its caller was cancelled", exc_info=task.exception())
        raise cancelled
    return task.result()
