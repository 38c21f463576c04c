"""Show what a server says when it refuses a request."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import httpx

P = ParamSpec("P")
R = TypeVar("R")


def log_http_errors(func: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Decorate an async function so that a refused request is raised with the server's own explanation.

    An `httpx.HTTPStatusError` whose body is JSON becomes an `Exception` with status, URL and the body's `detail` (the
    whole body where there is none). One with another body passes as it is.
    """

    @functools.wraps(func)
    async def explained(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await func(*args, **kwargs)
        except httpx.HTTPStatusError as error:
            explanation = _explanation(error.response)
            if explanation is None:
                raise
            raise Exception(f"[HTTP {error.response.status_code}] {error.request.url} : {explanation}") from error

    return explained


def _explanation(response: httpx.Response) -> Any | None:
    try:
        body = response.json()
    except (ValueError, httpx.StreamError):  # not JSON, or a stream that nobody has read
        return None
    return body.get("detail", body) if isinstance(body, dict) else body
