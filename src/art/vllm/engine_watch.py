"""Notice within a moment that an engine's process has died, and leave nobody waiting for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from art.processes import describe_exit

T = TypeVar("T")

POLL_S = 0.2
EXIT_CODE_WAIT_S = 2.0  # between vLLM's own notice and the exit code


class EngineGoneError(Exception):
    """The engine died before it answered."""


class EngineWatch:
    """Watches one engine.

    vLLM notices the end of its engine core by itself, but calls that were on their way to it never return.

    Args:
        engine: vLLM's engine client.
        processes: The engine's own processes.
    """

    def __init__(self, engine: Any, processes: Collection[BaseProcess]) -> None:
        self._engine = engine
        self._processes = list(processes)
        self._died = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, on_death: Callable[[], Awaitable[None]]) -> None:
        """Begin watching; `on_death` is awaited once, if the engine dies, before any call ends for that reason."""
        self._task = asyncio.create_task(self._watch(on_death), name="engine-watch")

    async def stop(self) -> None:
        """End watching, before the engine is shut down on purpose."""
        task, self._task = self._task, None
        self._died.set()  # nobody is to wait for a watch that has ended
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def is_dead(self) -> bool:
        """Whether the engine no longer works."""
        return bool(self._engine.errored)

    @property
    def pid(self) -> int | None:
        """The process that does the engine's work."""
        return self._processes[0].pid if self._processes else None

    @property
    def exit_code(self) -> int | None:
        """How that process ended; None while it runs, or where that is unknown."""
        return self._processes[0].exitcode if self._processes else None

    def describe(self) -> str:
        """Say how the engine is: alive, dead, killed."""
        if self.exit_code is not None:
            return f"engine process {self.pid} {describe_exit(self.exit_code)}"
        return f"engine process {self.pid} {'does not work any more' if self.is_dead else 'running'}"

    async def unless_dead(self, work: Awaitable[T]) -> T:
        """Await an engine's answer.

        Raises:
            EngineGoneError: The engine is dead, or died meanwhile.
        """
        answer = asyncio.ensure_future(work)
        death = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({answer, death}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise EngineGoneError(self.describe())
            try:
                return answer.result()
            except Exception as err:
                if not self.is_dead:
                    raise
                if self._task is not None:
                    await death
                raise EngineGoneError(f"{self.describe()}: {err}") from err
        finally:
            for future in (answer, death):
                future.cancel()

    async def _watch(self, on_death: Callable[[], Awaitable[None]]) -> None:
        while not self.is_dead:  # noqa: ASYNC110 - vLLM has nothing to wait on
            await asyncio.sleep(POLL_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_CODE_WAIT_S):
                while self._processes and self.exit_code is None:  # noqa: ASYNC110 - likewise
                    await asyncio.sleep(POLL_S)
        try:
            await on_death()
        finally:
            self._died.set()
