"""Make a checkpoint available to rollouts: the one way, for training, fine-tuning, skipped steps, resuming and
restarts.

A step counts as served only after the server lists its name at the address that rollouts use and answers a probe with
the step's own weights. Until then, and when anything fails, the previous step keeps serving.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from art.errors import AdapterLoadError, AdapterNotServedError, LocalServingUnavailableError, StaleAdapterError
from art.inference.adapter_reload import error_message
from art.inference.adapters import AdapterRegistry, check_adapter
from art.inference.admin_client import AdminClient
from art.inference.confirm import Reference, coarser_dtype, judge_probe
from art.inference.runtime import AdapterFiles, InferenceRuntime
from art.probe import AdapterProbe

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Publication:
    """A step that the server has confirmed.

    Attributes:
        step: The step.
        adapter_name: What rollouts ask for.
        logprob_gap: Mean absolute difference between server and trainer in nats; None for a checkpoint without probe.
        took_s: Seconds from the call to the confirmation.
    """

    step: int
    adapter_name: str
    logprob_gap: float | None
    took_s: float


class AdapterPublisher:
    """Publishes the steps of one model on one server, one at a time.

    Args:
        runtime: The engine and its server.
        registry: Which adapters are live.
        max_logprob_gap: Limit for the probe in nats; None chooses by computation type.
        max_live_adapters: How many steps stay addressable, the newest included.
    """

    def __init__(
        self,
        runtime: InferenceRuntime,
        registry: AdapterRegistry,
        *,
        max_logprob_gap: float | None,
        max_live_adapters: int,
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._max_gap = max_logprob_gap
        self._max_live = max_live_adapters
        self._client = AdminClient(runtime.base_url, runtime.api_key)
        self._lock = asyncio.Lock()
        self._served_probe: tuple[int, AdapterProbe, tuple[float, ...]] | None = None
        self._base_answer: tuple[tuple[int, ...], tuple[float, ...]] | None = None

    async def publish(self, step: int, checkpoint_dir: Path) -> Publication:
        """Load a checkpoint under `model@step`, confirm it, and let rollouts have it.

        Raises:
            CheckpointIncompleteError: The folder is not a loadable checkpoint.
            AdapterLoadError: The server refused it.
            AdapterNotServedError: The server took it but does not list it.
            StaleAdapterError: The name is answered with other weights.
            LocalServingUnavailableError: The server does not answer.
        """
        async with self._lock:
            started = time.monotonic()
            name = self._registry.name_of(step)
            live = self._registry.live.get(step)
            if live is not None and self._registry.is_same_files(live, checkpoint_dir):
                gap = await self._confirm(live)
                self._registry.commit(live)
            else:
                gap = await self._load_and_confirm(step, checkpoint_dir, replaced=live)
            await self._retire_unneeded()
            took_s = time.monotonic() - started
            logger.info("adapter served: step=%d name=%s took_s=%.3f logprob_gap=%s", step, name, took_s, gap)
            return Publication(step=step, adapter_name=name, logprob_gap=gap, took_s=took_s)

    async def confirm_after_restart(self) -> None:
        """Confirm a server that was started with every live adapter: all are listed, and the served one is the right
        one.

        Does not wait for a publication that is under way: that one waits for the restart.

        Raises:
            InferenceError: The server is not as it should be.
        """
        self._registry.forget_names()
        self._base_answer = self._served_probe = None
        for adapter in self._registry.live.values():
            self._registry.claim_name(adapter.name)
            await self._require_listed(adapter)
        if self._registry.served_step is not None:
            await self._confirm(self._registry.live[self._registry.served_step])

    async def serve_again(self, step: int, checkpoint_dir: Path) -> None:
        """Make an older step addressable, without changing what rollouts get by default."""
        async with self._lock:
            if step in self._registry.live:
                return
            adapter = await self._load(step, checkpoint_dir)
            try:
                await self._require_listed(adapter)
            except BaseException:
                await self._withdraw(adapter)
                raise
            self._registry.add_older(adapter)

    async def prune(self, retain_steps: frozenset[int]) -> list[int]:
        """Unload every live step that is not retained, leased or served; return the unloaded steps."""
        async with self._lock:
            return await self._retire(self._registry.retirable(keep_newest=0, keep_steps=retain_steps))

    async def confirm_served(self) -> float | None:
        """Probe the served step once more, as after a wake; return the gap.

        Raises:
            StaleAdapterError: The name is answered with other weights.
        """
        async with self._lock:
            if self._registry.served_step is None:
                return None
            return await self._confirm(self._registry.live[self._registry.served_step])

    async def close(self) -> None:
        """Close the connections; the runtime is closed by its owner."""
        await self._client.close()

    async def _load_and_confirm(
        self, step: int, checkpoint_dir: Path, *, replaced: AdapterFiles | None
    ) -> float | None:
        if replaced is not None:
            await self._runtime.unload_adapter(replaced.name)
        adapter = await self._load(step, checkpoint_dir)
        try:
            await self._require_listed(adapter)
            gap = await self._confirm(adapter)
        except BaseException:
            await self._withdraw(adapter)
            raise
        self._registry.commit(adapter)
        return gap

    async def _load(self, step: int, checkpoint_dir: Path) -> AdapterFiles:
        adapter = await asyncio.to_thread(self._registry.stage, step, checkpoint_dir)
        try:
            check_adapter(
                adapter,
                max_lora_rank=self._runtime.max_lora_rank,
                base_model_name=self._runtime.base_model_name,
            )
            is_new_name = self._registry.claim_name(adapter.name)
            await self._runtime.load_adapter(adapter)
            if not is_new_name:
                # vLLM keys its prefix cache by adapter name: under a name that comes back, old prompts would be found.
                await self._runtime.reset_prefix_cache()
        except BaseException:
            self._registry.discard(adapter)
            raise
        return adapter

    async def _require_listed(self, adapter: AdapterFiles) -> None:
        with _translated(adapter, self._client.base_url):
            listed = await self._client.list_models()
        if adapter.name not in listed:
            served = sorted(self._registry.live)
            raise AdapterNotServedError(
                f"adapter {adapter.name} was loaded from {adapter.path}, but {self._client.base_url}/models "
                f"does not list "
                f"it: it lists {sorted(listed)}; the engine has the adapter, the HTTP layer does not know its name. "
                f"Still served: step {self._registry.served_step}",
                step=adapter.step,
                served_steps=served,
            )

    async def _confirm(self, adapter: AdapterFiles) -> float | None:
        probe = await asyncio.to_thread(AdapterProbe.read, adapter.path)
        if probe is None:
            logger.info("adapter not probed: name=%s (its checkpoint holds no probe)", adapter.name)
            return None
        with _translated(adapter, self._client.base_url):
            references = await self._references(adapter.step, probe)
            answered = tuple(await self._client.score(adapter.name, probe.token_ids, probe.positions))
        verdict = judge_probe(
            expected=probe.at_positions(probe.logprobs),
            answered=answered,
            references=references,
            dtype=coarser_dtype(probe.dtype, self._runtime.engine_dtype),
            max_gap=self._max_gap,
        )
        if verdict.evidence is not None:
            raise StaleAdapterError(
                f"{adapter.name} at {self._client.base_url} does not answer with the weights of step "
                f"{adapter.step} from "
                f"{adapter.path}: {verdict.evidence}. Still served: step {self._registry.served_step}",
                step=adapter.step,
                adapter_name=adapter.name,
                logprob_gap=verdict.logprob_gap,
                limit=verdict.limit,
                evidence=verdict.evidence,
            )
        self._served_probe = (adapter.step, probe, answered)
        return verdict.logprob_gap

    async def _references(self, step: int, probe: AdapterProbe) -> list[Reference]:
        references = []
        if self._base_answer is None or self._base_answer[0] != probe.token_ids:
            scored = await self._client.score(self._runtime.base_model_name, probe.token_ids, probe.positions)
            self._base_answer = (probe.token_ids, tuple(scored))
        references.append(Reference("the base model", probe.at_positions(probe.base_logprobs), self._base_answer[1]))
        if self._served_probe is not None:
            served_step, served, answered = self._served_probe
            if served_step != step and served.token_ids == probe.token_ids:
                references.append(Reference(f"step {served_step}", served.at_positions(served.logprobs), answered))
        return references

    async def _withdraw(self, adapter: AdapterFiles) -> None:
        try:
            await self._runtime.unload_adapter(adapter.name)
        except (AdapterLoadError, LocalServingUnavailableError, httpx.HTTPError) as err:
            logger.warning("adapter not withdrawn: name=%s cause=%s", adapter.name, err)
        self._registry.discard(adapter)

    async def _retire_unneeded(self) -> None:
        await self._retire(self._registry.retirable(keep_newest=self._max_live))

    async def _retire(self, adapters: list[AdapterFiles]) -> list[int]:
        """Tidy up after the fact: a failure here is logged, since the new step is served all the same."""
        try:
            for adapter in adapters:
                await self._runtime.unload_adapter(adapter.name)
                self._registry.retire(adapter)
            self._registry.sweep(await self._runtime.requests_in_flight())
        except (AdapterLoadError, LocalServingUnavailableError, httpx.HTTPError) as err:
            logger.warning("old adapters not unloaded: cause=%s", err)
        return [adapter.step for adapter in adapters]


class _translated:
    """Turn HTTP errors of a confirmation into ours, with what was being confirmed."""

    def __init__(self, adapter: AdapterFiles, url: str) -> None:
        self._adapter = adapter
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, httpx.HTTPStatusError):
            response = error.response
            raise AdapterNotServedError(
                f"{self._adapter.name} could not be confirmed at {self._url}: the server answered "
                f"{response.status_code} "
                f"({error_message(response)})",
                step=self._adapter.step,
            ) from error
        if isinstance(error, httpx.HTTPError):
            raise LocalServingUnavailableError(
                f"{self._adapter.name} could not be confirmed at {self._url}: {type(error).__name__} {error}",
                facts={"url": self._url, "adapter_name": self._adapter.name, "step": self._adapter.step},
            ) from error
