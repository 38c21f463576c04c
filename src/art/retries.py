"""Call a function again when it fails: the decorator `art.retry`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import tenacity

from art.errors import ConfigurationError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_NEVER_RETRIED = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[BaseException], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a decorator that calls a sync or async function again when it fails.

    Args:
        max_attempts: Calls in all, the first included.
        delay: Seconds before the second call.
        backoff_factor: Each further wait is this many times the one before.
        exceptions: Errors worth another call; others pass. Cancellation and `KeyboardInterrupt` always pass.
        on_retry: Called with the error and the number of the attempt that failed, from 1, before each wait. Without
            it a warning is logged.

    Returns:
        The decorator. When the last attempt fails, its error is raised as it is.

    Raises:
        ConfigurationError: `max_attempts` is below 1, or the function to decorate.
    """
    if callable(max_attempts):
        raise ConfigurationError("art.retry makes a decorator: write `@art.retry()`, with its parentheses")
    if max_attempts < 1:
        raise ConfigurationError(f"max_attempts={max_attempts} must be at least 1")

    def is_worth_retrying(error: BaseException) -> bool:
        return isinstance(error, exceptions) and not isinstance(error, _NEVER_RETRIED)

    def tell(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if on_retry is not None:
            on_retry(error, state.attempt_number)  # type: ignore[arg-type]  # never None before a retry
        else:
            logger.warning(
                "%s failed, attempt %d of %d: %r; trying again in %.2f s",
                getattr(state.fn, "__qualname__", state.fn),
                state.attempt_number,
                max_attempts,
                error,
                state.upcoming_sleep,
            )

    return tenacity.retry(
        stop=tenacity.stop_after_attempt(max_attempts),
        wait=tenacity.wait_exponential(multiplier=delay, exp_base=backoff_factor),
        retry=tenacity.retry_if_exception(is_worth_retrying),
        before_sleep=tell,
        reraise=True,
    )
