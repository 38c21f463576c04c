"""Bound how many calls of an async function run at once."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, ParamSpec, TypeVar

from art.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


def limit_concurrency(
    n: int, derive_key: Callable[..., str] | None = None
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Make a decorator that lets at most n calls of an async function run at once; others wait their turn.

    Args:
        n: Calls that may run at once.
        derive_key: Gives a key from the call's arguments; the limit then holds for each key by itself.

    Raises:
        ConfigurationError: `n` is below 1, or the function to decorate.
    """
    if callable(n):
        raise ConfigurationError("limit_concurrency makes a decorator: write `@limit_concurrency(10)`")
    if n < 1:
        raise ConfigurationError(f"limit_concurrency: n={n} must be at least 1")

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        slots: dict[Hashable, _Slots] = {}

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            # A semaphore belongs to one event loop. An entry lives as long as a call uses it.
            key = (asyncio.get_running_loop(), None if derive_key is None else derive_key(*args, **kwargs))
            entry = slots.setdefault(key, _Slots(n))
            entry.users += 1
            try:
                async with entry.semaphore:
                    return await function(*args, **kwargs)
            finally:
                entry.users -= 1
                if entry.users == 0:
                    slots.pop(key, None)

        return limited

    return decorate


class _Slots:
    def __init__(self, n: int) -> None:
        self.semaphore = asyncio.Semaphore(n)
        self.users = 0
