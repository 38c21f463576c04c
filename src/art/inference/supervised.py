"""The runtime of dedicated mode: a supervised server process, asked over HTTP."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import httpx

from art.dev.settings import ServingSettings
from art.errors import AdapterLoadError, LocalServingUnavailableError, ServerDiedError
from art.inference.adapter_reload import (
    ReloadFailedError,
    ReloadRefusedError,
    ServerGoneError,
    error_message,
    load_adapter_with_retry,
)
from art.inference.diagnosis import ServingFacts
from art.inference.process_server import ServerSpec, exits_within, while_running
from art.inference.runtime import AdapterFiles
from art.inference.supervised_server import SupervisedServer

logger = logging.getLogger(__name__)

HEALTH_REPORT_TIMEOUT_S = 2.0
EXIT_NOTICE_S = 0.5  # between losing a connection to a process that ended and learning of its end
UNLOAD_TIMEOUT_S = 20.0  # a server forgets a name at once, unless it is still loading that name
_SERVER_ERROR = 500

T = TypeVar("T")


class SupervisedRuntime(SupervisedServer):
    """An inference server in a child process of ours, as an `InferenceRuntime`."""

    @classmethod
    async def start(cls, spec: ServerSpec, settings: ServingSettings) -> SupervisedRuntime:
        """Start the server and wait until it answers.

        Raises:
            ConfigurationError: The port is taken, or the log cannot be written.
            ServerStartError: The server ended.
            ServerNotReadyError: It did not answer in time.
        """
        runtime = cls(spec, settings)
        await runtime._start()
        return runtime

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
    def _report_timeout_s(self) -> float:
        return min(HEALTH_REPORT_TIMEOUT_S, self._settings.health_timeout_s)

    async def load_adapter(self, adapter: AdapterFiles) -> int:
        """Have the server load an adapter, through connection faults, restarts and lost replies."""
        before = await self._health_now()
        server = self._starts
        attempts = 1
        try:
            return await self._load_once(adapter)
        except ReloadRefusedError as err:
            is_own_fault = err.status < _SERVER_ERROR
            if is_own_fault or not await self._is_replaced(server, adapter):
                raise _refused(adapter, err) from err
        except ReloadFailedError as err:
            attempts = err.attempts
            facts = await self._reload_facts(adapter, before, err)
            if not await self._is_replaced(server, adapter):
                limit = f"{self._settings.adapter_reload_timeout_s:g} s (serving['adapter_reload_timeout_s'])"
                raise facts.to_error(f"{adapter.name} was not loaded within {limit}; last: {err.last}") from err
        except ServerGoneError as err:
            facts = await self._reload_facts(adapter, before, err)
            raise facts.to_error(f"{adapter.name} could not be loaded: {str(err).splitlines()[0]}") from err
        try:
            return attempts + await self._load_once(adapter)  # on the server that took the place of the one that failed
        except ReloadRefusedError as err:
            raise _refused(adapter, err) from err
        except (ReloadFailedError, ServerGoneError) as err:
            facts = await self._reload_facts(adapter, before, err)
            raise facts.to_error(f"{adapter.name} could not be loaded: a restart did not help") from err

    async def unload_adapter(self, name: str) -> None:
        """Make the HTTP layer forget a name; a name that is unknown is no error."""
        body = {"lora_name": name}
        response = await self._ask(lambda: self._client.post("/v1/unload_lora_adapter", body, UNLOAD_TIMEOUT_S))
        if not response.is_success and response.status_code != httpx.codes.NOT_FOUND:
            raise AdapterLoadError(
                f"{name} not unloaded: server answered {response.status_code} ({error_message(response)})",
                step=-1,
                path="",
                status=response.status_code,
                body=error_message(response),
            )

    async def requests_in_flight(self) -> dict[str, int]:
        """Count the requests that are being answered, by model name."""
        return dict(await self._ask(lambda: self._client.get("/art/in_flight", self._settings.health_timeout_s)))

    async def reset_prefix_cache(self) -> None:
        """Forget cached prompts."""
        response = await self._ask(lambda: self._client.post("/art/reset_prefix_cache", {}))
        if not response.is_success:
            raise self.facts().to_error(f"prompts not forgotten: the server answered {response.status_code}")

    @contextlib.asynccontextmanager
    async def yielded_to_trainer(self) -> AsyncIterator[None]:
        """Nothing is shared with the trainer: rollouts go on while it trains."""
        yield

    async def is_sleeping(self) -> bool:
        """Never: the server has its memory to itself."""
        return False

    async def progress_count(self) -> float | None:
        """Count the tokens processed so far; None where the server does not tell."""
        return await self._client.tokens_processed(self._settings.health_timeout_s)

    async def check_health(self) -> None:
        """Wait out a restart, then have one token generated."""
        await self.settled()
        child = self.process
        try:
            request = self._client.complete_one_token(self.base_model_name, self._settings.health_timeout_s)
            await while_running(child, request)
        except (httpx.HTTPError, ServerDiedError) as err:
            if await exits_within(child, EXIT_NOTICE_S):
                await self.settled()  # it did not hang, it ended; whoever took its place was asked at its start
                return
            facts = self.facts(child)
            facts.health_after = await self._client.health(self._report_timeout_s)
            raise facts.to_error(
                f"the server is alive but does not answer a one-token completion: {type(err).__name__} {err}".rstrip()
            ) from err

    async def _ask(self, send: Callable[[], Awaitable[T]]) -> T:
        """Send a request to a server that is not being restarted; say what is known where it does not answer."""
        await self.settled()
        child = self.process
        try:
            return await while_running(child, send())
        except (httpx.HTTPError, ServerDiedError, ValueError) as err:
            await exits_within(child, EXIT_NOTICE_S)
            raise self.facts(child).to_error(f"the server does not answer: {type(err).__name__} {err}") from err

    async def _load_once(self, adapter: AdapterFiles) -> int:
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
        if report.attempts > 1 or report.found_in_list:
            logger.info(
                "adapter loaded after trouble: name=%s attempts=%d took_s=%.2f found_in_list=%s",
                adapter.name,
                report.attempts,
                report.took_s,
                report.found_in_list,
            )
        return report.attempts

    async def _require_process(self) -> None:
        try:
            await self.settled()
        except LocalServingUnavailableError as err:
            raise ServerGoneError(str(err)) from err

    async def _is_replaced(self, server: int, adapter: AdapterFiles) -> bool:
        """After failed attempts: end a server that lives but does not answer. Returns whether another one serves."""
        try:
            try:
                await self.check_health()
            except LocalServingUnavailableError as err:
                await self.end_hung(err)
            return await self.settled() != server
        except LocalServingUnavailableError:
            return False

    async def _health_now(self) -> str:
        child = self.process
        if child.is_running:
            with contextlib.suppress(ServerDiedError):
                return await while_running(child, self._client.health(self._report_timeout_s))
        if self._failure is None or self._closing is not None:
            return f"not asked: {child.describe()}"  # connections would wait for its successor, or are closed
        return await self._client.health(self._report_timeout_s)

    async def _reload_facts(
        self, adapter: AdapterFiles, before: str, error: ReloadFailedError | ServerGoneError
    ) -> ServingFacts:
        facts = self.facts()
        facts.adapter_name, facts.step, facts.path = adapter.name, adapter.step, str(adapter.source or adapter.path)
        facts.health_before, facts.health_after = before, await self._health_now()
        facts.attempts, facts.waited_s = error.attempts, error.waited_s
        if self._failure is not None:
            known = self._failure.facts
            for name in ("pid", "process_state", "exit_code", "log_path", "log_tail", "restarts"):
                if name in known:
                    setattr(facts, name, known[name])
        return facts


def _refused(adapter: AdapterFiles, error: ReloadRefusedError) -> AdapterLoadError:
    return AdapterLoadError(
        f"adapter for step {adapter.step} not loaded from {adapter.path}: {error}",
        step=adapter.step,
        path=str(adapter.path),
        status=error.status,
        body=error.body,
    )
