"""The HTTP transport of rollouts: it waits out a reload or a restart of the server instead of failing.

A request that the server never answered is sent again: a completion has no effect on the server, and the caller has
seen nothing of it. An answer that breaks off after it began fails once, with what is known about the server.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator

import httpx

from art.errors import AnswerInterruptedError, InferenceError, LocalServingUnavailableError
from art.inference.gate import ServingGate

logger = logging.getLogger(__name__)

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 2.0
HEALTH_TIMEOUT_S = 5.0
_BUSY_STATUS = frozenset({502, 503, 504})
_SERVER_ERROR = 500


class RolloutTransport(httpx.AsyncBaseTransport):
    """Sends rollouts' requests to a local server.

    Args:
        gate: Says whether the server serves.
        wait_s: How long one request waits for a server that does not, in seconds.
        limits: Connection limits.
    """

    def __init__(self, gate: ServingGate, *, wait_s: float, limits: httpx.Limits) -> None:
        self._gate = gate
        self._wait_s = wait_s
        self._inner = httpx.AsyncHTTPTransport(limits=limits, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, as often as it takes within the limit.

        Raises:
            LocalServingUnavailableError: The server was given up, or did not come back in time.
        """
        await request.aread()  # so that the request can be sent again
        started = time.monotonic()
        deadline = started + self._wait_s
        attempts = 0
        cause: Exception | None
        while True:
            await self._gate.wait_open(deadline)
            attempts += 1
            try:
                response = await self._inner.handle_async_request(request)
                trouble = await self._trouble_of(request, response)
            except (
                httpx.ConnectError,
                httpx.ConnectTimeout,
                httpx.RemoteProtocolError,
                httpx.ReadError,
                httpx.WriteError,
            ) as err:
                trouble, cause = f"{type(err).__name__} {err}".strip(), err
            else:
                if trouble is None:
                    return self._watched(response, request)
                cause = None
            if time.monotonic() >= deadline:
                raise self._unavailable(request, attempts, time.monotonic() - started, trouble) from cause
            logger.debug("rollout request is sent again: url=%s attempt=%d cause=%s", request.url, attempts, trouble)
            await asyncio.sleep(
                min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(attempts - 1, 10)) * (0.5 + random.random())
            )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    async def _trouble_of(self, request: httpx.Request, response: httpx.Response) -> str | None:
        """Say why an answer is no answer; None for one that is to be handed on."""
        if response.status_code in _BUSY_STATUS:
            await response.aread()
            await response.aclose()
            return f"HTTP {response.status_code}"
        if response.status_code == _SERVER_ERROR:
            await response.aread()
            if not await self._is_healthy(request):
                return "HTTP 500 from a server whose engine is dead"
        return None

    async def _is_healthy(self, request: httpx.Request) -> bool:
        """Ask whether the engine behind a 500 lives: then the request itself is at fault."""
        url = request.url.copy_with(raw_path=b"/health")
        timeout = httpx.Timeout(HEALTH_TIMEOUT_S).as_dict()
        health = httpx.Request(
            "GET", url, headers={"Host": request.url.netloc.decode()}, extensions={"timeout": timeout}
        )
        try:
            answer = await self._inner.handle_async_request(health)
            await answer.aread()
        except httpx.TransportError:
            return False
        return answer.status_code < _SERVER_ERROR

    def _watched(self, response: httpx.Response, request: httpx.Request) -> httpx.Response:
        if isinstance(response.stream, httpx.AsyncByteStream) and not response.is_stream_consumed:
            response.stream = _WatchedStream(response.stream, self, request)
        return response

    def _unavailable(
        self, request: httpx.Request, attempts: int, waited_s: float, trouble: str
    ) -> LocalServingUnavailableError:
        failure = self._gate.failure
        if failure is not None:
            return failure
        return LocalServingUnavailableError(
            f"the inference server at {request.url} did not answer: {attempts} attempts in {waited_s:.1f} s, last: "
            f"{trouble} (limit: serving['rollout_wait_s'])",
            facts={"url": str(request.url), "attempts": attempts, "waited_s": waited_s},
        )

    def broke_off(self, request: httpx.Request, error: httpx.TransportError) -> InferenceError:
        """Return the error for an answer that began and did not end: it ends the rollout, not the run."""
        if self._gate.failure is not None:
            return self._gate.failure
        return AnswerInterruptedError(
            f"the answer from {request.url} broke off after it had begun: {type(error).__name__} {error}".rstrip(),
            facts={"url": str(request.url), "cause": f"{type(error).__name__} {error}".rstrip()},
        )


class _WatchedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, transport: RolloutTransport, request: httpx.Request) -> None:
        self._stream = stream
        self._transport = transport
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except (httpx.ReadError, httpx.RemoteProtocolError) as err:
            raise self._transport.broke_off(self._request, err) from err

    async def aclose(self) -> None:
        await self._stream.aclose()
