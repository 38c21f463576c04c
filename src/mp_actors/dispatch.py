"""Run an object's methods by name, whatever kind they are; shared by the child process and the thread."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def run_method(
    target: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], emit: Callable[[Any], None]
) -> Any:
    """Call a method and wait for it.

    Async generators hand each value to `emit` and return None; plain functions run in a thread, so that the loop goes
    on.
    """
    function = getattr(target, method)
    if inspect.isasyncgenfunction(function):
        generator = function(*args, **kwargs)
        try:
            async for value in generator:
                emit(value)
        finally:
            await generator.aclose()
        return None
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


async def close_object(target: Any) -> None:
    """Call the object's `close`, if it has one, and wait for it."""
    close = getattr(target, "close", None)
    if close is None:
        return
    if inspect.iscoroutinefunction(close):
        await close()
    else:
        await asyncio.to_thread(close)
