"""The HTTP transport of rollouts: it waits out a reload or a restart of the server instead of failing.

A request that the server never answered is sent again: a completion has no effect on the server, and the caller has
seen nothing of it. An answer that breaks off after it began fails once, with what is known about the server. So does a
request that was being answered both times when a server ended: it may be what ends them, and must not use up every
restart.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator

import httpx

from art.errors import AnswerInterruptedError, LocalServingUnavailableError
from art.inference.connection_lanes import LaneTransport
from art.inference.gate import ServingGate

logger = logging.getLogger(__name__)

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 2.0
PROBE_TIMEOUT_S = 5.0
NOTICE_S = 1.0  # between losing a connection and learning what became of the server
MAX_ENDED_SERVERS = 2  # during one request, before it is suspected
_BUSY_STATUS = frozenset({502, 503, 504})
_SERVER_ERROR = 500
_DEAD_ENGINE = "HTTP 500 from a server whose engine is dead"
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
_CONNECTION_ERRORS = (*_NEVER_SENT, httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


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
        self._inner = LaneTransport(limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, as often as it takes within the limit.

        Raises:
            LocalServingUnavailableError: The server was given up, or did not come back in time.
            AnswerInterruptedError: Two servers ended, one after the other, while they were answering this request.
        """
        await request.aread()  # so that the request can be sent again
        started = time.monotonic()
        deadline: float | None = None  # set when trouble begins: an answer itself may take as long as it takes
        attempts = ended_servers = 0
        cause: Exception | None
        while True:
            if not self._gate.is_open:
                deadline = deadline or time.monotonic() + self._wait_s
                await self._gate.wait_open(deadline)
            attempts += 1
            closings = self._gate.closings
            try:
                async with self._gate.until_given_up():
                    response = await self._inner.handle_async_request(request)
                    trouble = await self._trouble_of(request, response, closings)
                    if trouble is None:
                        return await self._readable(request, response)
                cause = None
            except _CONNECTION_ERRORS as err:
                trouble, cause = f"{type(err).__name__} {err}".strip(), err
            if _may_have_ended_it(trouble, cause):
                await self._gate.wait_for_trouble(NOTICE_S)
                ended_servers += self._gate.closings != closings
                if ended_servers >= MAX_ENDED_SERVERS:
                    raise self._suspected(request, ended_servers, trouble) from cause
            deadline = deadline or time.monotonic() + self._wait_s
            if time.monotonic() >= deadline:
                raise self._unavailable(request, attempts, time.monotonic() - started, trouble) from cause
            logger.debug("rollout request is sent again: url=%s attempt=%d cause=%s", request.url, attempts, trouble)
            await asyncio.sleep(
                min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(attempts - 1, 10)) * (0.5 + random.random())
            )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    async def _trouble_of(self, request: httpx.Request, response: httpx.Response, closings: int) -> str | None:
        """Say why an answer is no answer; None for one that is to be handed on.

        Args:
            request: What was asked.
            response: The answer.
            closings: How often the server had gone away when the request was sent.
        """
        if response.status_code not in _BUSY_STATUS and response.status_code != _SERVER_ERROR:
            return None
        await _read_whole(response)
        if response.status_code in _BUSY_STATUS:
            return f"HTTP {response.status_code}"
        is_alive = await self._is_engine_alive(request)
        # Connections to a server that has gone wait for its successor: a time-out, or an answer, may be about that one.
        return None if is_alive and self._gate.closings == closings else _DEAD_ENGINE

    async def _is_engine_alive(self, request: httpx.Request) -> bool:
        """Ask whether the engine behind a 500 lives: then the request itself is at fault."""
        try:
            health = await self._probe(request, "GET", "/health")
            if health.status_code >= _SERVER_ERROR:
                return False
        except httpx.TransportError:
            return False  # also where it took too long: this is answered without the engine
        try:
            # A server may call itself healthy while its engine is dead: only an answer shows that it lives.
            return (await self._probe(request, "POST", "/v1/completions")).status_code < _SERVER_ERROR
        except httpx.TimeoutException:
            return True  # busy, as far as can be told
        except httpx.TransportError:
            return False

    async def _probe(self, request: httpx.Request, method: str, path: str) -> httpx.Response:
        probe = httpx.Request(
            method,
            request.url.copy_with(raw_path=path.encode()),
            headers={name: request.headers[name] for name in ("host", "authorization") if name in request.headers},
            json=None if method == "GET" else {"model": _model_of(request), "prompt": "Hi", "max_tokens": 1},
            extensions={"timeout": httpx.Timeout(PROBE_TIMEOUT_S).as_dict()},
        )
        response = await self._inner.handle_async_request(probe)
        await _read_whole(response)
        return response

    async def _readable(self, request: httpx.Request, response: httpx.Response) -> httpx.Response:
        """Return an answer that does not break off, or does so with what is known about the server.

        Only a streaming one can be seen half: any other is read here, where it can still be asked for again.
        """
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            await _read_whole(response)
        elif isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _WatchedStream(response.stream, self, self._gate, request)
        return response

    def _unavailable(
        self, request: httpx.Request, attempts: int, waited_s: float, trouble: str
    ) -> LocalServingUnavailableError:
        return LocalServingUnavailableError(
            f"the inference server at {request.url} did not answer: {attempts} attempts in {waited_s:.1f} s, last: "
            f"{trouble} (limit: serving['rollout_wait_s'])",
            facts={"url": str(request.url), "attempts": attempts, "waited_s": waited_s},
        )

    def _suspected(self, request: httpx.Request, ended_servers: int, trouble: str) -> AnswerInterruptedError:
        reason, facts = self._gate.trouble
        return AnswerInterruptedError(
            f"not sent again: {ended_servers} servers ended, one after the other, while answering this request "
            f"to {request.url}, which may be the cause; last: {trouble}{f'; the server: {reason}' if reason else ''}",
            facts={**facts, "url": str(request.url), "cause": trouble},
        )

    async def broke_off(self, request: httpx.Request, error: httpx.TransportError) -> AnswerInterruptedError:
        """Return the error for an answer that began and did not end: it ends the rollout, not the run.

        Raises:
            LocalServingUnavailableError: The server was given up.
        """
        await self._gate.wait_for_trouble(NOTICE_S)
        reason, facts = self._gate.trouble
        cause = f"{type(error).__name__} {error}".rstrip()
        return AnswerInterruptedError(
            f"the answer from {request.url} broke off after it had begun: {cause}"
            f"{f'; the server: {reason}' if reason else ''}",
            facts={**facts, "url": str(request.url), "cause": cause},
        )


class _WatchedStream(httpx.AsyncByteStream):
    def __init__(
        self, stream: httpx.AsyncByteStream, transport: RolloutTransport, gate: ServingGate, request: httpx.Request
    ) -> None:
        self._stream = stream
        self._transport = transport
        self._gate = gate
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._stream)
        try:
            while True:
                async with self._gate.until_given_up():
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                yield chunk
        except httpx.TransportError as err:
            raise await self._transport.broke_off(self._request, err) from err

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _read_whole(response: httpx.Response) -> None:
    """Read an answer's bytes as they came and give its connection back; it can be read again by the caller."""
    stream = response.stream
    if not isinstance(stream, httpx.AsyncByteStream):
        return
    try:
        body = b"".join([chunk async for chunk in stream])
    finally:
        await stream.aclose()
    response.stream = httpx.ByteStream(body)


def _may_have_ended_it(trouble: str, cause: Exception | None) -> bool:
    """Whether a request had reached the server when it got into trouble."""
    return trouble == _DEAD_ENGINE if cause is None else not isinstance(cause, _NEVER_SENT)


def _model_of(request: httpx.Request) -> str:
    try:
        return str(json.loads(request.content)["model"])
    except (ValueError, KeyError, TypeError):
        return ""
