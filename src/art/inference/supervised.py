"""The server of dedicated mode: a child process that is watched, diagnosed, and restarted within limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx

from art.dev.settings import ServingSettings
from art.errors import AdapterLoadError, InferenceError, LocalServingUnavailableError
from art.inference.adapter_reload import ReloadFailedError, ReloadRefusedError, error_message, load_adapter_with_retry
from art.inference.admin_client import AdminClient
from art.inference.diagnosis import ServingFacts
from art.inference.process_server import ServerSpec, connectable_url, open_listener, start_server, wait_until_ready
from art.inference.rotating_log import start_log
from art.inference.runtime import AdapterFiles
from art.inference.tasks import uninterrupted
from art.processes import ChildProcess, log_tail

logger = logging.getLogger(__name__)

HEALTH_BEFORE_TIMEOUT_S = 2.0


class SupervisedRuntime:
    """An inference server in a child process of ours. All methods run on the event loop that started it.

    Attributes:
        live_adapters: Asked at each restart for the adapters to start with.
        on_restarted: Awaited after a restart, before rollouts go on; raises when the server is not as it should be.
        on_event: Told `recovering`, `recovered` and `unavailable`.
    """

    def __init__(self, spec: ServerSpec, settings: ServingSettings) -> None:
        self.live_adapters: Callable[[], Sequence[AdapterFiles]] = lambda: ()
        self.on_restarted: Callable[[], Awaitable[None]] = _do_nothing
        self.on_event: Callable[[Mapping[str, Any]], None] = lambda event: None
        self._spec = spec
        self._settings = settings
        self._listener = open_listener(spec.host, spec.port)
        self._client = AdminClient(self.base_url, spec.api_key)
        self._child: ChildProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._restarted_at: deque[float] = deque()
        self._steady = asyncio.Event()  # set while the server is neither down nor being restarted
        self._failure: LocalServingUnavailableError | None = None
        self._hang: str | None = None
        self._closing = False

    @classmethod
    async def start(cls, spec: ServerSpec, settings: ServingSettings) -> SupervisedRuntime:
        """Start the server and wait until it answers.

        Raises:
            ConfigurationError: The port is taken, or the log cannot be written.
            ServerStartError: The server ended.
            ServerNotReadyError: It did not answer in time.
        """
        runtime = cls(spec, settings)
        try:
            await runtime._launch()
        except BaseException:
            await uninterrupted(runtime.close())
            raise
        runtime._steady.set()
        runtime._supervisor = asyncio.create_task(runtime._supervise(), name="server-supervisor")
        return runtime

    @property
    def base_url(self) -> str:
        """Where rollouts reach the server."""
        return connectable_url(self._spec.host, self._listener.getsockname()[1])

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        url = httpx.URL(self.base_url)
        return url.host, url.port or 80

    @property
    def api_key(self) -> str:
        """The key that the server asks for."""
        return self._spec.api_key

    @property
    def engine_dtype(self) -> str:
        """Computation type of the engine, as configured; "auto" counts as bfloat16."""
        dtype = str(self._spec.engine_args.get("dtype") or "auto")
        return {"auto": "bfloat16", "half": "float16", "float": "float32"}.get(dtype, dtype)

    @property
    def max_lora_rank(self) -> int:
        """Highest rank of an adapter that the engine takes."""
        return int(self._spec.engine_args.get("max_lora_rank") or 16)

    @property
    def base_model_name(self) -> str:
        """Name under which the server answers without an adapter."""
        return self._spec.served_model_name

    @property
    def process(self) -> ChildProcess:
        """The current child.

        Raises:
            LocalServingUnavailableError: None was started.
        """
        if self._child is None:
            raise self._facts().to_error("the inference server is not running")
        return self._child

    async def load_adapter(self, adapter: AdapterFiles) -> None:
        """Have the server load an adapter, through connection faults, restarts and lost replies."""
        before = await self._client.health(HEALTH_BEFORE_TIMEOUT_S)
        try:
            await self._load_once(adapter)
            return
        except ReloadFailedError as err:
            facts = await self._reload_facts(adapter, before, err)
            if not await self._end_if_hung(f"loading {adapter.name}"):
                raise facts.to_error(f"{adapter.name} could not be loaded: the server was not reachable") from err
        except LocalServingUnavailableError as err:
            facts = await self._reload_facts(adapter, before, None)
            raise facts.to_error(f"{adapter.name} could not be loaded: the server is gone") from err
        try:
            await self._load_once(adapter)  # the hung server was ended and another has taken its place
        except (ReloadFailedError, LocalServingUnavailableError) as err:
            raise facts.to_error(
                f"{adapter.name} could not be loaded: the server hung and a restart did not help"
            ) from err

    async def unload_adapter(self, name: str) -> None:
        """Make the HTTP layer forget a name; a name that is unknown is no error."""
        response = await self._client.post("/v1/unload_lora_adapter", {"lora_name": name})
        if not response.is_success and response.status_code != 404:
            raise AdapterLoadError(
                f"{name} not unloaded: server answered {response.status_code} ({error_message(response)})",
                step=-1,
                path="",
                status=response.status_code,
                body=error_message(response),
            )

    async def requests_in_flight(self) -> dict[str, int]:
        """Count the requests that are being answered, by model name."""
        try:
            return dict(await self._client.get("/art/in_flight"))
        except httpx.HTTPError as err:
            raise self._facts().to_error(f"the server does not answer: {type(err).__name__} {err}") from err

    async def reset_prefix_cache(self) -> None:
        """Forget cached prompts."""
        (await self._client.post("/art/reset_prefix_cache", {})).raise_for_status()

    @contextlib.asynccontextmanager
    async def yielded_to_trainer(self) -> AsyncIterator[None]:
        """Nothing is shared with the trainer: rollouts go on while it trains."""
        yield

    async def is_sleeping(self) -> bool:
        """Never: the server has its memory to itself."""
        return False

    async def progress_count(self) -> float | None:
        """Count the tokens processed so far; None where the server does not tell."""
        return await self._client.tokens_processed()

    async def check_health(self) -> None:
        """Look at the process, then have one token generated."""
        await self._steady.wait()
        if self._failure is not None:
            raise self._failure
        try:
            await self._client.complete_one_token(self.base_model_name, self._settings.health_timeout_s)
        except httpx.HTTPError as err:
            health = await self._client.health(self._settings.health_timeout_s)
            facts = self._facts()
            facts.health_after = health
            raise facts.to_error(
                f"the server is alive but does not answer a one-token completion: {type(err).__name__} {err}".rstrip()
            ) from err

    async def end_hung(self, error: LocalServingUnavailableError) -> None:
        """End a server that runs but does not answer; the supervisor restarts it, or gives up with this diagnosis."""
        child = self._child
        if child is None or not child.is_running or self._closing:
            return
        self._hang = str(error)
        logger.error("server ended because it does not answer: %s", error)
        self._steady.clear()
        await asyncio.to_thread(child.kill_group)

    async def close(self) -> None:
        """End the server and everything it started."""
        self._closing = True
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)
        if self._child is not None:
            await asyncio.to_thread(self._child.stop)
        await self._client.close()
        self._listener.close()
        self._steady.set()

    async def _load_once(self, adapter: AdapterFiles) -> None:
        try:
            report = await load_adapter_with_retry(
                self._client.http,
                self._client.root_url,
                name=adapter.name,
                path=str(adapter.path),
                total_timeout_s=self._settings.adapter_reload_timeout_s,
                require_process=self._require_process,
                on_retry=lambda number, error: logger.warning(
                    "adapter load tried again: name=%s attempt=%d cause=%s %s",
                    adapter.name,
                    number,
                    type(error).__name__,
                    error,
                ),
            )
        except ReloadRefusedError as err:
            raise AdapterLoadError(
                f"adapter for step {adapter.step} not loaded from {adapter.path}: {err}",
                step=adapter.step,
                path=str(adapter.path),
                status=err.status,
                body=err.body,
            ) from err
        if report.attempts > 1 or report.found_in_list:
            logger.info(
                "adapter loaded after trouble: name=%s attempts=%d took_s=%.2f found_in_list=%s",
                adapter.name,
                report.attempts,
                report.took_s,
                report.found_in_list,
            )

    async def _require_process(self) -> None:
        if not self.process.is_running:
            self._steady.clear()  # the supervisor sees the same exit and decides
        await self._steady.wait()
        if self._failure is not None:
            raise self._failure

    async def _end_if_hung(self, during: str) -> bool:
        """After failed attempts: end a server that lives but does not answer. Returns whether another one now
        serves."""
        if not self.process.is_running:
            await self._steady.wait()
            return self._failure is None
        try:
            await self.check_health()
        except LocalServingUnavailableError as err:
            await self.end_hung(err)
            await self._steady.wait()
            return self._failure is None
        logger.warning("server answers completions but not the request: while %s", during)
        return False

    async def _supervise(self) -> None:
        while True:
            child = self.process
            await asyncio.shield(asyncio.wrap_future(child.exited))
            if self._closing:
                return
            self._steady.clear()
            await asyncio.to_thread(child.kill_group)
            if not await self._recover(child):
                self._steady.set()
                return
            self._steady.set()

    async def _recover(self, dead: ChildProcess) -> bool:
        """Restart until it works or the limit is reached; return whether a server serves again."""
        hang, self._hang = self._hang, None
        what = f"{dead.describe()}{' after it had stopped answering' if hang else ''}"
        cause: InferenceError | None = None
        while self._may_restart():
            self._restarted_at.append(time.monotonic())
            logger.error(
                "server gone, restarting: %s restart=%d of %d log=%s",
                what,
                len(self._restarted_at),
                self._settings.inference_restarts,
                dead.log_path,
            )
            self.on_event({"kind": "recovering", "text": what})
            try:
                await self._launch()
                await self.on_restarted()
            except InferenceError as err:
                logger.error("restart failed: %s", err)
                cause = err
                if self._child is not None:
                    await asyncio.to_thread(self._child.kill_group)
                continue
            logger.warning("server restarted: %s", self.process.describe())
            self.on_event({"kind": "recovered"})
            return True
        self._give_up(dead, hang, cause)
        return False

    def _give_up(self, dead: ChildProcess, hang: str | None, cause: InferenceError | None) -> None:
        facts = self._facts(dead)
        limit = self._settings.inference_restarts
        facts.restarts = (
            f"{len(self._restarted_at)} of {limit} within {self._settings.restart_window_s:g} s"
            if limit
            else "none allowed (serving['inference_restarts']=0)"
        )
        headline = f"the inference server is gone: {facts.process_state}"
        if hang:
            headline += "; it was alive but did not answer and was ended"
        if cause is not None:
            headline += f"; the last restart failed: {str(cause).splitlines()[0]}"
        self._failure = facts.to_error(headline)
        self._listener.close()  # whoever waits in its queue is told now
        self.on_event({"kind": "unavailable", "error": self._failure})

    def _may_restart(self) -> bool:
        while self._restarted_at and time.monotonic() - self._restarted_at[0] > self._settings.restart_window_s:
            self._restarted_at.popleft()
        return len(self._restarted_at) < self._settings.inference_restarts

    async def _launch(self) -> None:
        start_log(self._spec.log_path)
        adapters = list(self.live_adapters())
        self._child = await asyncio.to_thread(start_server, self._spec, adapters, self._listener)
        names = {adapter.name for adapter in adapters} | {self.base_model_name}
        await wait_until_ready(self._child, self._client, self._spec, names)

    async def _reload_facts(self, adapter: AdapterFiles, before: str, error: ReloadFailedError | None) -> ServingFacts:
        facts = self._facts()
        facts.adapter_name, facts.step, facts.path = adapter.name, adapter.step, str(adapter.source or adapter.path)
        facts.health_before = before
        facts.health_after = await self._client.health(HEALTH_BEFORE_TIMEOUT_S)
        if error is not None:
            facts.attempts, facts.waited_s = error.attempts, error.waited_s
        if self._failure is not None:
            facts.restarts = self._failure.facts.get("restarts")
        return facts

    def _facts(self, child: ChildProcess | None = None) -> ServingFacts:
        child = child or self._child
        facts = ServingFacts(url=self.base_url if self._listener.fileno() >= 0 else self._client.base_url)
        if child is not None:
            facts.pid, facts.process_state, facts.exit_code = child.pid, child.describe(), child.exit_code
            facts.log_path, facts.log_tail = str(child.log_path), log_tail(child.log_path)
        return facts


async def _do_nothing() -> None:
    return None
