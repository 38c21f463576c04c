"""An HTTP transport for a thousand requests at once, each on a connection of its own.

httpx's own pool looks through all its connections and waiting requests whenever one request begins or ends: at 1,024
connections that takes 25 ms of the event loop for each request, at 16 well under 1 ms. Here a request takes a free lane
(a transport with at most one connection), the one that was used last, in a time that does not depend on their number.
"""

from __future__ import annotations

import asyncio
import ssl
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx

_CLOSED_AT_ONCE = 4  # lanes that nobody needs any more are closed little by little


@dataclass
class _Lane:
    transport: httpx.AsyncHTTPTransport
    idle_since: float = field(default_factory=time.monotonic)


class LaneTransport(httpx.AsyncBaseTransport):
    """Sends requests to servers on this machine, from any event loop. Proxy variables are ignored.

    Args:
        limits: As httpx reads them, for each event loop; `max_connections=None` sets no limit.
    """

    def __init__(self, limits: httpx.Limits) -> None:
        self._ssl_context = httpx.create_ssl_context(trust_env=False)  # expensive to make, so all lanes share it
        self._limits = limits
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Lanes] = weakref.WeakKeyDictionary()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request on a connection that no other uses; it is free again when the answer has been closed.

        Raises:
            httpx.PoolTimeout: All connections were in use for as long as the request may wait.
        """
        lanes = self._lanes_here()
        lane = await lanes.take(request.extensions.get("timeout", {}).get("pool"))
        try:
            response = await lane.transport.handle_async_request(request)
        except BaseException:
            lanes.give_back(lane)
            raise
        if isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _LaneStream(response.stream, lambda: lanes.give_back(lane))
        return response

    async def aclose(self) -> None:
        """Close all connections of this event loop; those of loops that are closed went with them."""
        await self._lanes_here().close()

    def _lanes_here(self) -> _Lanes:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:  # connections of a loop that has ended cannot be used by the next
            self._by_loop[loop] = _Lanes(self._limits, self._ssl_context)
        return self._by_loop[loop]


class _Lanes:
    """The lanes of one event loop."""

    def __init__(self, limits: httpx.Limits, ssl_context: ssl.SSLContext) -> None:
        self._ssl_context = ssl_context
        self._lane_limits = httpx.Limits(max_connections=1, keepalive_expiry=limits.keepalive_expiry)
        self._idle_limit_s = limits.keepalive_expiry
        self._free = None if limits.max_connections is None else asyncio.Semaphore(limits.max_connections)
        self._open: set[httpx.AsyncHTTPTransport] = set()
        self._idle: deque[_Lane] = deque()  # the one that was used last at the right

    async def take(self, timeout_s: float | None) -> _Lane:
        await self._wait_for_turn(timeout_s)
        try:
            await self._close_expired()
        except BaseException:
            self._end_turn()
            raise
        if self._idle:
            return self._idle.pop()
        transport = httpx.AsyncHTTPTransport(verify=self._ssl_context, limits=self._lane_limits, trust_env=False)
        self._open.add(transport)
        return _Lane(transport)

    def give_back(self, lane: _Lane) -> None:
        lane.idle_since = time.monotonic()
        if lane.transport in self._open:  # not closed meanwhile
            self._idle.append(lane)
        self._end_turn()

    async def close(self) -> None:
        self._idle.clear()
        while self._open:
            await self._open.pop().aclose()

    async def _wait_for_turn(self, timeout_s: float | None) -> None:
        if self._free is None:
            return
        try:
            async with asyncio.timeout(timeout_s if self._free.locked() else None):
                await self._free.acquire()
        except TimeoutError as err:
            raise httpx.PoolTimeout("all connections were in use") from err

    def _end_turn(self) -> None:
        if self._free is not None:
            self._free.release()

    async def _close_expired(self) -> None:
        """Close lanes that were idle for so long that the server has closed their connection."""
        if self._idle_limit_s is None:
            return
        for _ in range(_CLOSED_AT_ONCE):
            if not self._idle or time.monotonic() - self._idle[0].idle_since < self._idle_limit_s:
                return
            expired = self._idle.popleft().transport
            self._open.discard(expired)
            await expired.aclose()


class _LaneStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, on_close: Callable[[], None]) -> None:
        self._stream = stream
        self._on_close: Callable[[], None] | None = on_close

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            on_close, self._on_close = self._on_close, None
            if on_close is not None:
                on_close()
