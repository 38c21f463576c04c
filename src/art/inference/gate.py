"""Whether rollouts may go ahead: shared by every event loop and thread of the caller's process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

from art.errors import LocalServingUnavailableError


class ServingGate:
    """Open while the server serves, closed while it recovers, broken once it has been given up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._closed_reason: str | None = None
        self._failure: LocalServingUnavailableError | None = None

    @property
    def failure(self) -> LocalServingUnavailableError | None:
        """Why the server was given up, or None."""
        return self._failure

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent now."""
        return self._closed_reason is None and self._failure is None

    def open(self) -> None:
        """Let waiting and new requests go ahead."""
        with self._lock:
            self._closed_reason = None
        self._wake()

    def close(self, reason: str) -> None:
        """Have requests wait while the server recovers."""
        with self._lock:
            self._closed_reason = reason

    def fail(self, error: LocalServingUnavailableError) -> None:
        """Have waiting and new requests fail with the diagnosis."""
        with self._lock:
            self._failure = error
        self._wake()

    async def wait_open(self, deadline: float) -> None:
        """Wait until requests may be sent.

        Args:
            deadline: On `time.monotonic()`'s clock.

        Raises:
            LocalServingUnavailableError: The server was given up, or did not come back in time.
        """
        while True:
            event = asyncio.Event()
            entry = (asyncio.get_running_loop(), event)
            with self._lock:
                if self._failure is not None:
                    raise self._failure
                if self._closed_reason is None:
                    return
                reason = self._closed_reason
                self._waiters.add(entry)
            try:
                await asyncio.wait_for(event.wait(), max(0.0, deadline - time.monotonic()))
            except TimeoutError as err:
                raise LocalServingUnavailableError(
                    f"the inference server did not come back in time: {reason} (limit: serving['rollout_wait_s'])"
                ) from err
            finally:
                with self._lock:
                    self._waiters.discard(entry)

    def _wake(self) -> None:
        with self._lock:
            waiters = list(self._waiters)
        for loop, event in waiters:
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits on it
                loop.call_soon_threadsafe(event.set)
