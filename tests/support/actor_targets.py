"""Objects that tests move to a child process or a thread."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any


class ReadableIn:
    """Pickles everywhere, unpickles in one process only."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __reduce__(self) -> tuple[Any, ...]:
        return _require_process, (type(self), self.pid)


class ErrorReadableIn(ReadableIn, Exception):
    """The same, to be raised."""


def _require_process(kind: type[ReadableIn], pid: int) -> ReadableIn:
    if os.getpid() != pid:
        raise LookupError("not readable here")
    return kind(pid)


class Counter:
    """Does one of everything that a call can do."""

    def __init__(self, start: int = 0) -> None:
        self.on_event: Callable[[Any], None] | None = None
        self.value = start

    async def add(self, amount: int) -> int:
        """Add and return the new value."""
        self.value += amount
        if self.on_event is not None:
            self.on_event({"value": self.value})
        return self.value

    def add_blocking(self, amount: int) -> int:
        """The same, as a plain function."""
        self.value += amount
        return self.value

    async def pid(self) -> int:
        """Return the process that the object lives in."""
        return os.getpid()

    async def fail(self, text: str) -> None:
        """Raise a `ValueError`."""
        raise ValueError(text)

    async def fail_oddly(self) -> None:
        """Raise an exception that does not pickle."""

        class LocalError(Exception):
            pass

        raise LocalError("cannot travel")

    async def give_unpicklable(self) -> Any:
        """Return something that does not pickle."""
        return threading.Lock()

    async def give_unreadable(self) -> Any:
        """Return something that the caller's process cannot unpickle."""
        return ReadableIn(os.getpid())

    async def fail_unreadably(self) -> None:
        """Raise something that the caller's process cannot unpickle."""
        raise ErrorReadableIn(os.getpid())

    async def count_unreadably(self) -> AsyncIterator[Any]:
        """Yield something that the caller's process cannot unpickle."""
        yield ReadableIn(os.getpid())
        await asyncio.Event().wait()

    async def take(self, value: Any) -> str:
        """Return the type's name of what was given."""
        return type(value).__name__

    async def exit_system(self) -> None:
        """Raise SystemExit inside a call."""
        raise SystemExit(3)

    async def count_up(self, until: int) -> AsyncIterator[int]:
        """Yield numbers."""
        for number in range(until):
            yield number

    async def count_and_fail(self, until: int) -> AsyncIterator[int]:
        """Yield numbers, then raise."""
        for number in range(until):
            yield number
        raise ValueError("after the last")

    async def wait_for_ever(self, marker: str) -> None:
        """Wait; write what ended the wait into a file."""
        Path(marker).write_text("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            Path(marker).write_text("cancelled")
            raise

    async def die(self) -> None:
        """Kill the object's own process."""
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()

    async def start_grandchild(self) -> int:
        """Start a process that would outlive this one."""
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        return process.pid

    async def close(self) -> None:
        """Nothing to close."""
