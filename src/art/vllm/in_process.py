"""The engine of shared mode: vLLM and its HTTP layer in this process, taking turns with the trainer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import httpx

from art.dev.settings import ServingSettings
from art.errors import AdapterLoadError, ARTError, LocalServingUnavailableError
from art.inference.admin_client import AdminClient
from art.inference.diagnosis import ServingFacts
from art.inference.process_server import open_listener
from art.inference.runtime import AdapterFiles
from art.inference.tasks import uninterrupted
from art.processes import log_tail
from art.vllm import serving_registry
from art.vllm.compat import VllmApi, load_vllm_api
from art.vllm.engine import EnginePlan, engine_environment, engine_turn, parse_plan
from art.vllm.engine_start import StartedEngine, start_guarded_engine
from art.vllm.engine_watch import EngineGoneError, EngineWatch
from art.vllm.server import OpenAIServer
from art.vllm.start_errors import size_of, start_error

logger = logging.getLogger(__name__)

# Pausing takes to the end of one step of the engine, waking up copies the weights back: seconds at most.
ENGINE_ANSWER_S = 120.0

T = TypeVar("T")
OnDeath = Callable[[LocalServingUnavailableError], Awaitable[None]]


class InProcessRuntime:
    """An engine that we hold, and the HTTP server around it. All methods run on the event loop that started it."""

    def __init__(
        self,
        api: VllmApi,
        started: StartedEngine,
        server: OpenAIServer,
        plan: EnginePlan,
        settings: ServingSettings,
        log_path: Path,
        on_death: OnDeath,
    ) -> None:
        self._api = api
        self._started = started
        self._engine = started.client
        self._on_death = on_death
        self._server = server
        self._plan = plan
        self._settings = settings
        self._log_path = log_path
        self._is_sleeping = False
        self._closed = False
        self._hang: str | None = None
        self._server_closing: asyncio.Task[None] | None = None
        self._client = AdminClient(self.base_url, self.api_key)
        self._watch = EngineWatch(self._engine, started.processes)
        self._watch.start(self._engine_died)

    @classmethod
    async def start(
        cls,
        plan: EnginePlan,
        *,
        host: str,
        port: int,
        settings: ServingSettings,
        log_path: Path,
        on_death: OnDeath | None = None,
    ) -> InProcessRuntime:
        """Start engine and server; the event loop goes on meanwhile.

        Args:
            plan: What to start.
            host: Address to listen on.
            port: 0 takes a free one.
            settings: How it is run.
            log_path: Named in errors.
            on_death: Awaited with the diagnosis when the engine dies.

        Raises:
            ConfigurationError: The port is taken, or vLLM refuses an argument.
            DependencyError: vLLM is absent or unusable.
            ServerStartError: The engine did not start.
        """
        listener = open_listener(host, port)
        log_began = size_of(log_path)
        started: StartedEngine | None = None
        try:
            api = await asyncio.to_thread(load_vllm_api)
            async with engine_turn():
                with engine_environment(plan):
                    args = parse_plan(api, plan, host=host, port=listener.getsockname()[1])
                    started = await start_guarded_engine(api, args)
                    server = await OpenAIServer.start(api, started.client, args, listener)
        except BaseException as err:
            listener.close()
            if started is not None:
                await uninterrupted(asyncio.to_thread(started.shut_down))
            if isinstance(err, ARTError) or not isinstance(err, Exception):
                raise
            raise start_error(err, plan, log_path, log_began) from err
        return cls(api, started, server, plan, settings, log_path, on_death or _do_nothing)

    @property
    def base_url(self) -> str:
        """Where rollouts reach the server."""
        host = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        return f"http://{host}:{self._server.port}/v1"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        return self._server.host, self._server.port

    @property
    def api_key(self) -> str:
        """The key that the server asks for."""
        return str(self._plan.server_args.get("api_key") or "default")

    @property
    def engine_dtype(self) -> str:
        """Computation type of the engine."""
        return str(self._engine.model_config.dtype).removeprefix("torch.")

    @property
    def max_lora_rank(self) -> int:
        """Highest rank of an adapter that the engine takes."""
        return int(self._engine.vllm_config.lora_config.max_lora_rank)

    @property
    def base_model_name(self) -> str:
        """Name under which the server answers without an adapter."""
        return str(self._server.serving_models.base_model_paths[0].name)

    async def settled(self) -> int:
        """Return at once: an engine in this process is never replaced."""
        if self._engine.errored:
            raise self._unavailable("waiting for it")
        return 0

    async def load_adapter(self, adapter: AdapterFiles) -> int:
        """Load an adapter into the engine and register its name with the HTTP layer, at the first attempt or never."""
        loading = serving_registry.load_adapter(
            self._engine,
            self._server.serving_models,
            self._api.LoRARequest,
            name=adapter.name,
            path=str(adapter.path),
        )
        try:
            await self._ask(loading, f"loading {adapter.name} from {adapter.path}")
        except serving_registry.AdapterRefusedError as err:
            raise AdapterLoadError(
                f"adapter for step {adapter.step} not loaded from {adapter.path}: {err}",
                step=adapter.step,
                path=str(adapter.path),
                body=str(err),
            ) from err
        return 1

    async def unload_adapter(self, name: str) -> None:
        """Make the HTTP layer forget a name."""
        serving_registry.unload_adapter(self._server.serving_models, name=name)

    async def requests_in_flight(self) -> dict[str, int]:
        """Count the requests that are being answered, by model name."""
        return dict(self._server.in_flight)

    async def reset_prefix_cache(self) -> None:
        """Forget cached prompts; running requests are computed again from their text."""
        resetting = self._engine.reset_prefix_cache(reset_running_requests=True)
        if not await self._ask(resetting, "resetting its prefix cache"):
            logger.warning("the engine did not reset its prefix cache")

    @contextlib.asynccontextmanager
    async def yielded_to_trainer(self) -> AsyncIterator[None]:
        """Pause generation and, on a GPU, have the engine give its memory back; undo both on leaving.

        Running requests are held, or finished first, never cut off; new ones wait and then go on.
        """
        try:
            await self._pause()
            if self._can_sleep:
                self._is_sleeping = True
                await self._ask(self._engine.sleep(level=1, mode="keep"), "giving its memory back")
            yield
        finally:
            await uninterrupted(self._resume())

    async def is_sleeping(self) -> bool:
        """Whether the engine has yielded its memory."""
        return self._is_sleeping

    async def progress_count(self) -> float | None:
        """Count the tokens processed so far."""
        return await self._client.tokens_processed()

    async def check_health(self) -> None:
        """Have one token generated by the base model; while the engine is yielded nothing is asked of it."""
        if self._engine.errored:
            raise self._unavailable("checking its health")
        try:
            async with asyncio.timeout(self._settings.health_timeout_s):
                if await self._ask(self._engine.is_paused(), "checking its health"):
                    return
        except TimeoutError as err:
            raise self._unavailable("checking its health", err) from err
        try:
            await self._client.complete_one_token(self.base_model_name, self._settings.health_timeout_s)
        except httpx.HTTPError as err:
            raise self._unavailable("a one-token completion", err) from err

    async def end_hung(self, error: LocalServingUnavailableError) -> None:
        """End an engine that runs but does not answer, so that nobody waits for it; its death is then reported.

        Args:
            error: How the hang was noticed.
        """
        if self._watch.is_dead or self._closed:
            return
        self._hang = error.message.splitlines()[0]
        logger.error("engine ended because it does not answer: %s", error)
        for process in self._started.processes:
            process.kill()

    async def close(self) -> None:
        """Close the port and end the engine's processes."""
        if self._closed:
            return
        self._closed = True
        await self._watch.stop()
        try:
            await self._client.close()
            await (self._server_closing or self._server.close())
        finally:
            await uninterrupted(asyncio.to_thread(self._started.shut_down))

    @property
    def _can_sleep(self) -> bool:
        return self._plan.has_cuda and bool(self._plan.engine_args.get("enable_sleep_mode"))

    async def _pause(self) -> None:
        mode = self._settings.pause_mode or ("wait" if self._plan.has_cuda else "keep")
        running = sum(self._server.in_flight.values())
        if mode == "wait" and running:
            started = time.monotonic()
            # Not cancelled when it takes too long: the engine answers the call when it is idle, whoever listens.
            waiting = asyncio.ensure_future(self._engine.pause_generation(mode="wait", clear_cache=False))
            idle = asyncio.wait({waiting}, timeout=self._settings.pause_timeout_s)
            await self._ask(idle, "waiting for running requests", timeout_s=None)
            if waiting.done():
                waiting.result()
            else:
                logger.warning(
                    "requests held while training: %d were still running after %.0f s; they go on afterwards",
                    sum(self._server.in_flight.values()),
                    time.monotonic() - started,
                )
        # With memory given back, held requests lose their cache: clearing it makes the engine compute them again.
        pausing = self._engine.pause_generation(mode="keep", clear_cache=self._can_sleep)
        await self._ask(pausing, "pausing for the trainer")

    async def _resume(self) -> None:
        during = "resuming after the trainer"
        if self._is_sleeping:
            await self._ask(self._engine.wake_up(), during)
            self._is_sleeping = False
        if await self._ask(self._engine.is_paused(), during):
            await self._ask(self._engine.resume_generation(), during)

    async def _ask(self, work: Awaitable[T], during: str, *, timeout_s: float | None = ENGINE_ANSWER_S) -> T:
        """Await the engine's answer, or say that it died or hung meanwhile: its own calls would then wait for ever."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._watch.unless_dead(work)
        except EngineGoneError as err:
            raise self._unavailable(during, err) from err
        except TimeoutError as err:
            error = self._unavailable(f"{during}, after {timeout_s:g} s")
            await self.end_hung(error)
            raise error from err

    async def _engine_died(self) -> None:
        hang = f"it had not answered and was ended: {self._hang}" if self._hang else "nothing was asked of it"
        await self._on_death(self._unavailable(hang))
        self._server_closing = asyncio.create_task(self._server.close())  # whoever waits in its queue is told now

    def _unavailable(self, during: str, cause: Exception | None = None) -> LocalServingUnavailableError:
        facts = ServingFacts(
            url=self.base_url,
            pid=self._watch.pid,
            process_state=self._watch.describe(),
            exit_code=self._watch.exit_code,
            log_path=str(self._log_path),
            log_tail=log_tail(self._log_path),
        )
        reason = f": {type(cause).__name__} {cause}" if cause is not None and not self._watch.is_dead else ""
        state = "is dead" if self._watch.is_dead else "does not answer"
        return facts.to_error(f"the inference engine {state} (noticed while {during}{reason})")


async def _do_nothing(error: LocalServingUnavailableError) -> None:
    return None
