"""Run awaitables as tasks that never outlive the call that started them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Collection, Iterable
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

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
    """Cancel the tasks that still run and return when every task has ended; their own failures are only logged."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a task had failed when it was stopped: %r", error)


async def result_or_error(awaitable: Awaitable[T]) -> T | Exception:
    """Await and give the result, or the error as a value; cancellation and `KeyboardInterrupt` pass through."""
    try:
        return await awaitable
    except Exception as error:  # noqa: BLE001  # the caller decides what the failure of a rollout means
        return error


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
