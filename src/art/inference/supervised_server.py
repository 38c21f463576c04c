"""A server process that is watched, and restarted within limits: how it lives, not what it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx

from art.dev.settings import ServingSettings
from art.errors import InferenceError, LocalServingUnavailableError
from art.inference.admin_client import AdminClient
from art.inference.diagnosis import ServingFacts, fresh
from art.inference.process_server import (
    ServerSpec,
    connectable_url,
    open_listener,
    start_server,
    wait_until_ready,
    while_running,
)
from art.inference.rotating_log import keep_log, start_log
from art.inference.runtime import AdapterFiles
from art.inference.tasks import uninterrupted
from art.processes import STOP_GRACE_S, ChildProcess, log_tail

logger = logging.getLogger(__name__)

START_STOP_GRACE_S = 2.0  # a server that is still starting has nothing to finish, and reacts when it has started


class SupervisedServer:
    """A server in a child process of ours. All methods run on the event loop that started it.

    Attributes:
        live_adapters: Asked at each restart for the adapters to start with.
        on_restarted: Awaited after a restart, before rollouts go on; raises when the server is not as it should be.
        on_event: Told `recovering`, `recovered` and `unavailable`.
        base_url: Where rollouts reach the server.
    """

    def __init__(self, spec: ServerSpec, settings: ServingSettings) -> None:
        self.live_adapters: Callable[[], Sequence[AdapterFiles]] = lambda: ()
        self.on_restarted: Callable[[], Awaitable[None]] = _do_nothing
        self.on_event: Callable[[Mapping[str, Any]], None] = lambda event: None
        self._spec = spec
        self._settings = settings
        self._listener = open_listener(spec.host, spec.port)
        self.base_url = connectable_url(spec.host, self._listener.getsockname()[1])
        self._client = AdminClient(self.base_url, spec.api_key)
        self._child: ChildProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._steady = asyncio.Event()  # set while the server is neither down nor being restarted, and for good at last
        self._failure: LocalServingUnavailableError | None = None  # set for good: given up, or closed
        self._hang: str | None = None
        self._restarted_at: deque[float] = deque()
        self._starts = 0

    @property
    def process(self) -> ChildProcess:
        """The current child.

        Raises:
            LocalServingUnavailableError: None was started.
        """
        if self._child is None:
            raise self.facts().to_error("the inference server is not running")
        return self._child

    async def settled(self) -> int:
        """Wait until the server is neither down nor being restarted.

        Returns:
            A number that changes whenever another server takes its place.

        Raises:
            LocalServingUnavailableError: It was given up, or is closed; the error carries the diagnosis.
        """
        while self._failure is None:
            if not self.process.is_running:
                self._steady.clear()  # the supervisor sees the same exit and sets it when all is decided
            if self._steady.is_set():
                return self._starts
            await self._steady.wait()
        raise fresh(self._failure)

    async def end_hung(self, error: LocalServingUnavailableError) -> None:
        """End a server that runs but does not answer; the supervisor restarts it, or gives up with this diagnosis.

        Args:
            error: What a health check raised; it counts for the process that it names and no other.
        """
        child = self._child
        if child is None or not child.is_running or not self._steady.is_set() or self._failure is not None:
            return
        if error.facts.get("pid", child.pid) != child.pid:
            return
        self._hang = str(error)
        logger.error("server ended because it does not answer: %s", error)
        self._steady.clear()
        await asyncio.to_thread(child.kill_group)
        if child.is_running and self._failure is None:
            # Stuck in the kernel, as in a driver that hangs: it has not ended, so that no other can take its place.
            self._give_up(child, self._hang, InferenceError("the process does not react to SIGKILL"))
            self._steady.set()

    async def close(self) -> None:
        """End the server and everything it started, also when the caller is cancelled meanwhile; safe to call twice."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="server-close")
        await uninterrupted(self._closing)

    def facts(self, child: ChildProcess | None = None) -> ServingFacts:
        """Return what is known about a child, the current one if none is given."""
        child = child or self._child
        facts = ServingFacts(url=self.base_url)
        if child is not None:
            facts.pid, facts.process_state, facts.exit_code = child.pid, child.describe(), child.exit_code
            facts.log_path, facts.log_tail = str(child.log_path), log_tail(child.log_path)
        return facts

    async def _start(self) -> None:
        try:
            await self._launch()
        except BaseException:
            await self.close()
            raise
        self._steady.set()
        self._supervisor = asyncio.create_task(self._supervise(), name="server-supervisor")

    async def _launch(self) -> None:
        """Start a server on what is live now, and wait until it answers."""
        kept = keep_log(self._spec.log_path)
        if kept is not None and self._child is not None:
            self._child.log_path = kept
        start_log(self._spec.log_path)
        adapters = list(self.live_adapters())
        await uninterrupted(self._spawn(adapters))  # half-way, nobody would know of the child
        names = {adapter.name for adapter in adapters} | {self._spec.served_model_name}
        await wait_until_ready(self.process, self._client, self._spec, names)

    async def _spawn(self, adapters: Sequence[AdapterFiles]) -> None:
        self._starts += 1
        self._child = await asyncio.to_thread(start_server, self._spec, adapters, self._listener)

    async def _supervise(self) -> None:
        while self._failure is None:
            child = self.process
            await asyncio.wait({child.exited_here()})
            if self._failure is not None:
                return
            self._steady.clear()
            hang, self._hang = self._hang, None
            try:
                await self._recover(child, hang)
            except Exception as err:
                logger.exception("recovery failed")
                self._give_up(child, hang, err)
            self._steady.set()

    async def _recover(self, dead: ChildProcess, hang: str | None) -> None:
        """Restart until it works or the limit is reached."""
        if not self._may_restart():
            self._give_up(dead, hang, None)
            await asyncio.to_thread(dead.kill_group)
            return
        what = f"{dead.describe()}{' after it had stopped answering' if hang else ''}"
        self._emit({"kind": "recovering", "text": what, "facts": self.facts(dead).known()})
        await asyncio.to_thread(dead.kill_group)
        cause: Exception | None = None
        while self._may_restart():
            self._restarted_at.append(time.monotonic())
            logger.error(
                "server gone, restarting: %s restart=%d of %d log=%s",
                what,
                len(self._restarted_at),
                self._settings.inference_restarts,
                dead.log_path,
            )
            try:
                await self._launch()
                await while_running(self.process, self.on_restarted())
            except Exception as err:  # noqa: BLE001 - whatever it is, waiters are told; the last one is in the diagnosis
                logger.error("restart failed: %s", err)
                cause = err
                await asyncio.to_thread(self.process.kill_group)
                continue
            logger.warning("server restarted: %s", self.process.describe())
            self._emit({"kind": "recovered"})
            return
        self._give_up(dead, hang, cause)

    def _may_restart(self) -> bool:
        while self._restarted_at and time.monotonic() - self._restarted_at[0] > self._settings.restart_window_s:
            self._restarted_at.popleft()
        return len(self._restarted_at) < self._settings.inference_restarts

    def _give_up(self, dead: ChildProcess, hang: str | None, cause: Exception | None) -> None:
        facts = self.facts(dead)
        limit = self._settings.inference_restarts
        facts.restarts = (
            f"{len(self._restarted_at)} of {limit} within {self._settings.restart_window_s:g} s"
            if limit
            else "none allowed (serving['inference_restarts']=0)"
        )
        headline = f"the inference server is {'given up' if dead.is_running else 'gone'}: {facts.process_state}"
        if hang:
            headline += f"; it was alive but did not answer{'' if dead.is_running else ' and was ended'}"
        if cause is not None:
            headline += f"; no other could be started: {(str(cause) or type(cause).__name__).splitlines()[0]}"
        self._failure = facts.to_error(headline)
        logger.error("server given up: %s", self._failure)
        self._listener.close()  # whoever waits in its queue is told now
        self._emit({"kind": "unavailable", "error": self._failure})

    def _emit(self, event: Mapping[str, Any]) -> None:
        try:
            self.on_event(event)
        except Exception:
            logger.exception("event handler failed: %s", event["kind"])

    async def _close(self) -> None:
        was_serving = self._steady.is_set()
        if self._failure is None:
            self._failure = LocalServingUnavailableError(
                f"the inference server at {self.base_url} was closed", facts={"url": self.base_url}
            )
        self._steady.set()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._child is not None:
            await asyncio.to_thread(self._child.stop, STOP_GRACE_S if was_serving else START_STOP_GRACE_S)
        with contextlib.suppress(httpx.HTTPError):
            await self._client.close()
        self._listener.close()


async def _do_nothing() -> None:
    return None
