"""The OpenAI client through which rollouts reach a model."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import weakref
from collections.abc import Generator
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx
from openai import AsyncOpenAI

from art.model.answers import note_answer

logger = logging.getLogger(__name__)

# A sampled answer may wait for a training step, then take minutes itself.
READ_TIMEOUT_S = 1200.0
# A busy server accepts late when a thousand rollouts start at once.
CONNECT_TIMEOUT_S = 30.0
# Near what a local server works on at a time; further requests wait for a free connection.
MAX_CONNECTIONS = 1024
# Files, pipes and sockets that the rest of the process needs.
RESERVED_DESCRIPTORS = 256
MIN_CONNECTIONS = 64


def build_openai_client(base_url: str, api_key: str, http_client: httpx.AsyncClient | None) -> AsyncOpenAI:
    """Build a client for many long requests at once.

    Args:
        base_url: Where the server is, with its `/v1`.
        api_key: The server's key.
        http_client: The transport to use; None builds one that suits the address.
    """
    # Any: OpenAI's client names the types of another HTTP package in newer versions, but takes these in all.
    transport: Any = http_client or _build_http_client(base_url)
    timeout: Any = rollout_timeout()
    hooks = transport.event_hooks
    transport.event_hooks = {**hooks, "response": [*hooks.get("response", []), note_answer]}
    return _RolloutClient(base_url=base_url, api_key=api_key, http_client=transport, timeout=timeout)


class _RolloutClient(AsyncOpenAI):
    def __await__(self) -> Generator[Any, None, NoReturn]:
        raise TypeError("model.openai_client() gives the client at once: write `client = model.openai_client()`")
        yield


def is_loopback_url(url: str) -> bool:
    """Tell whether an address is on this machine, where no proxy must come between."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _build_http_client(base_url: str) -> httpx.AsyncClient:
    connections = affordable_connections()
    trusts_env = not is_loopback_url(base_url)
    return _AnyLoopClient(
        timeout=rollout_timeout(),
        follow_redirects=True,
        limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        trust_env=trusts_env,
        verify=httpx.create_ssl_context(trust_env=trusts_env),
    )


class _AnyLoopClient(httpx.AsyncClient):
    """A client with connections of its own for each event loop: those of a loop that has ended cannot be used again."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._options = options
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None:
            client = self._by_loop[loop] = httpx.AsyncClient(**self._options, event_hooks=self.event_hooks)
        return await client.send(request, **options)

    async def aclose(self) -> None:
        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
        await super().aclose()


def rollout_timeout() -> httpx.Timeout:
    """Return the time-outs of rollouts' requests."""
    return httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)


def affordable_connections() -> int:
    """Return how many connections the limit on open files leaves room for, at most `MAX_CONNECTIONS`."""
    try:
        import resource
    except ImportError:
        return MAX_CONNECTIONS  # Windows has no such limit.
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY or soft_limit >= MAX_CONNECTIONS + RESERVED_DESCRIPTORS:
        return MAX_CONNECTIONS
    connections = max(MIN_CONNECTIONS, soft_limit - RESERVED_DESCRIPTORS)
    logger.info(
        "this process may open %d files, so its client keeps to %d connections and further requests wait; "
        "`ulimit -n 65536` before the start lifts that",
        soft_limit,
        connections,
    )
    return connections
