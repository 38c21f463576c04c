"""Calls that are to be awaited, and say so when somebody iterates over them instead."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def only_awaited(
    right_call: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Make a decorator for coroutine functions whose calls cannot be iterated over.

    What they give is a coroutine for everybody who awaits it, runs it or makes a task of it.

    Args:
        right_call: What the TypeError for iterating says.
    """

    def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
            return _AwaitedCall(function(*args, **kwargs), right_call)

        return _marked(call)

    return decorate


class _AwaitedCall(Coroutine[Any, Any, T]):
    def __init__(self, coroutine: Coroutine[Any, Any, T], right_call: str) -> None:
        self._coroutine = coroutine
        self._right_call = right_call

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(
        self, typ: Any, val: BaseException | object | None = None, tb: TracebackType | None = None
    ) -> Any:  # the three arguments are those of the abstract method; asyncio gives the first
        return self._coroutine.throw(typ) if val is None and tb is None else self._coroutine.throw(typ, val, tb)

    def close(self) -> None:
        self._coroutine.close()

    def __iter__(self) -> NoReturn:
        self._refuse()

    def __aiter__(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        self._coroutine.close()
        raise TypeError(self._right_call)


def _marked(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have a function count as a coroutine function."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    import asyncio.coroutines

    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return function
