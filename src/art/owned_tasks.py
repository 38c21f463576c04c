"""Run awaitables as tasks that never outlive the call that started them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Collection, Iterable
from typing import Any, TypeVar

from art.errors import RolloutTimedOutError

logger = logging.getLogger(__name__)

# Longer than cleaning up usually takes; nothing is done about it, but somebody should know.
CANCELLATION_NOTICE_S = 30.0

T = TypeVar("T")


async def run_all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Run all at once and give their results in input order.

    The first failure is raised as it is, after the other tasks have been cancelled and have ended. Cancelling the
    caller cancels and awaits them all.
    """
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        for completed in asyncio.as_completed(tasks):  # unlike `gather`, it cancels nothing by itself: once is enough
            await completed
        return [task.result() for task in tasks]
    finally:
        await cancel_and_wait(tasks)


async def cancel_and_wait(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel the tasks that still run and return when every task has ended; their own failures are only logged.

    Cancelled itself meanwhile, it cancels them again, and is cancelled once they have ended.
    """
    cancelled = [task for task in tasks if not task.done()]
    for task in cancelled:
        task.cancel()
    running = set(cancelled)
    again: asyncio.CancelledError | None = None
    while running:
        try:
            _, running = await asyncio.wait(running, timeout=CANCELLATION_NOTICE_S)
        except asyncio.CancelledError as error:
            again = error
            for task in running:
                task.cancel()
            continue
        if running:
            logger.warning("still waiting for %d cancelled tasks to end, such as %r", len(running), next(iter(running)))
    for task in tasks:
        if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
            logger.debug("a task had failed when it was stopped: %r", failure)
    if again is not None:
        raise again


async def result_or_error(awaitable: Awaitable[T], *, limit_s: float | None = None) -> T | Exception:
    """Await and give the result, or the error as a value; cancellation and `KeyboardInterrupt` pass through.

    Args:
        awaitable: A rollout, or a group of them.
        limit_s: How long it may take, in seconds; it is cancelled then, and the error is a `RolloutTimedOutError`.
            None for as long as it takes.
    """
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            return await awaitable
    except Exception as error:  # noqa: BLE001  # the caller decides what the failure of a rollout means
        if limit_s is None or not limit.expired():
            return error
        timed_out = RolloutTimedOutError(
            f"a rollout took longer than {limit_s:g} s and was cancelled; ART_ROLLOUT_TIMEOUT sets the limit",
            limit_s=limit_s,
        )
        timed_out.__cause__ = error  # its traceback shows where the rollout was
        return timed_out


def close_unstarted(awaitables: Iterable[object]) -> None:
    """Close coroutines that will never be awaited, so that Python does not warn about them.

    Awaitables of other kinds are closed through their method `close_unstarted` if they have it, else left alone.
    """
    for awaitable in awaitables:
        if inspect.iscoroutine(awaitable):
            if inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
                awaitable.close()
        elif callable(close := getattr(awaitable, "close_unstarted", None)):
            close()
