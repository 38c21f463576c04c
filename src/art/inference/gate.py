"""Whether rollouts may go ahead: shared by every event loop and thread of the caller's process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from art.errors import LocalServingUnavailableError
from art.inference.diagnosis import fresh

_Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class ServingGate:
    """Open while the server serves, closed while it recovers, broken once it has been given up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[_Waiter] = set()
        self._in_flight: set[tuple[asyncio.AbstractEventLoop, asyncio.Timeout]] = set()
        self._closed_reason: str | None = None
        self._facts: dict[str, Any] = {}
        self._failure: LocalServingUnavailableError | None = None
        self._closings = 0

    @property
    def closings(self) -> int:
        """How often the server has gone away so far."""
        return self._closings

    @property
    def failure(self) -> LocalServingUnavailableError | None:
        """Why the server was given up, or None."""
        return self._failure

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent now."""
        return self._closed_reason is None and self._failure is None

    @property
    def trouble(self) -> tuple[str, dict[str, Any]]:
        """Why requests have to wait now, in words and as facts; empty while it is open."""
        with self._lock:
            return self._closed_reason or "", dict(self._facts)

    def open(self) -> None:
        """Let waiting and new requests go ahead."""
        with self._lock:
            self._closed_reason, self._facts = None, {}
        self._wake()

    def close(self, reason: str, facts: Mapping[str, Any] | None = None) -> None:
        """Have requests wait while the server recovers.

        Args:
            reason: What happened to it, in words.
            facts: What is known about it, as in `LocalServingUnavailableError`.
        """
        with self._lock:
            self._closings += self._closed_reason is None
            self._closed_reason, self._facts = reason, dict(facts or {})
        self._wake()

    def renew(self, reason: str) -> None:
        """Forget a failure: another server is being started, and requests wait for it."""
        with self._lock:
            self._failure, self._closed_reason, self._facts = None, reason, {}

    def fail(self, error: LocalServingUnavailableError) -> None:
        """Have waiting and new requests, and those on their way, fail with the diagnosis."""
        with self._lock:
            self._failure = error
            in_flight = list(self._in_flight)
        self._wake()
        for loop, scope in in_flight:
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits on it
                loop.call_soon_threadsafe(_expire, scope)

    @contextlib.asynccontextmanager
    async def until_given_up(self) -> AsyncIterator[None]:
        """Run a block until the server is given up, which may be long before it would close a connection.

        Raises:
            LocalServingUnavailableError: The server was given up.
        """
        scope = asyncio.timeout(None)
        entry = (asyncio.get_running_loop(), scope)
        try:
            async with scope:
                with self._lock:
                    if self._failure is not None:
                        raise fresh(self._failure)
                    self._in_flight.add(entry)
                try:
                    yield
                finally:
                    with self._lock:
                        self._in_flight.discard(entry)
        except TimeoutError:
            if scope.expired() and self._failure is not None:
                raise fresh(self._failure) from None
            raise

    async def wait_open(self, deadline: float) -> None:
        """Wait until requests may be sent.

        Args:
            deadline: On `time.monotonic()`'s clock.

        Raises:
            LocalServingUnavailableError: The server was given up, or did not come back in time.
        """
        while True:
            with self._lock:
                if self._failure is not None:
                    raise fresh(self._failure)
                if self._closed_reason is None:
                    return
                reason, facts = self._closed_reason, self._facts
                waiter = self._add_waiter()
            if not await self._wait_for_change(waiter, deadline):
                raise LocalServingUnavailableError(
                    f"the inference server did not come back in time: {reason} (limit: serving['rollout_wait_s'])",
                    facts=facts,
                )

    async def wait_for_trouble(self, timeout_s: float) -> None:
        """Wait until the gate is closed, at most so long: whoever lost a connection learns why.

        Raises:
            LocalServingUnavailableError: The server was given up.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if self._failure is not None:
                    raise fresh(self._failure)
                if self._closed_reason is not None:
                    return
                waiter = self._add_waiter()
            if not await self._wait_for_change(waiter, deadline):
                return

    def _add_waiter(self) -> _Waiter:
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        self._waiters.add(waiter)
        return waiter

    async def _wait_for_change(self, waiter: _Waiter, deadline: float) -> bool:
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await waiter[1].wait()
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiters.discard(waiter)
        return True

    def _wake(self) -> None:
        with self._lock:
            waiters = list(self._waiters)
        for loop, event in waiters:
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits on it
                loop.call_soon_threadsafe(event.set)


def _expire(scope: asyncio.Timeout) -> None:
    with contextlib.suppress(RuntimeError):  # its block has been left meanwhile
        scope.reschedule(asyncio.get_running_loop().time())
