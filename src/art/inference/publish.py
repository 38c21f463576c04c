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

from art.errors import (
    AdapterLoadError,
    AdapterNotServedError,
    InferenceError,
    LocalServingUnavailableError,
)
from art.inference.adapters import AdapterRegistry, check_adapter
from art.inference.admin_client import AdminClient
from art.inference.confirm import Reference, coarser_dtype, judge_probe
from art.inference.publication_errors import about_step, not_listed, stale, translated
from art.inference.runtime import AdapterFiles, InferenceRuntime
from art.inference.tasks import uninterrupted
from art.probe import AdapterProbe

logger = logging.getLogger(__name__)

# How long a loaded adapter may take to be confirmed, through connection faults: long enough for a monitor to end a
# server that hangs, and for the adapter to be confirmed on the next one.
CONFIRM_LIMIT_S = 120.0
CLEAN_UP_LIMIT_S = 20.0  # how long a failed or cancelled publication may take to undo what it did
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 2.0


@dataclass(frozen=True)
class Publication:
    """A step that the server has confirmed.

    Attributes:
        step: The step.
        adapter_name: What rollouts ask for.
        logprob_gap: Mean absolute difference between server and trainer in nats; None for a checkpoint without probe.
        took_s: Seconds from the call to the confirmation.
        attempts: Load requests that it took; 0 where the server had the adapter already.
    """

    step: int
    adapter_name: str
    logprob_gap: float | None
    took_s: float
    attempts: int = 1


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
        self._in_transit: set[int] = set()  # live steps that are being unloaded or replaced
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
            attempts = 0
            try:
                if live is not None and await asyncio.to_thread(self._registry.is_same_files, live, checkpoint_dir):
                    gap = await self._confirm_again(live)
                    self._registry.commit(live)
                else:
                    gap, attempts = await self._replace(live, step, checkpoint_dir)
            except LocalServingUnavailableError as err:
                raise about_step(err, name, step, checkpoint_dir) from err
            await self._retire_unneeded()
            took_s = time.monotonic() - started
            logger.info(
                "adapter served: step=%d name=%s took_s=%.3f attempts=%d logprob_gap=%s",
                *(step, name, took_s, attempts, gap),
            )
            return Publication(step=step, adapter_name=name, logprob_gap=gap, took_s=took_s, attempts=attempts)

    async def confirm_after_restart(self) -> None:
        """Confirm a server that was started with every live adapter: all are listed, and the served one is the right
        one.

        Does not wait for a publication that is under way: that one waits for the restart.

        Raises:
            InferenceError: The server is not as it should be.
        """
        self._registry.forget_names()
        self._base_answer = self._served_probe = None
        for adapter in list(self._registry.live.values()):
            self._registry.claim_name(adapter.name)
            await self._require_listed(adapter)
        if self._registry.served_step is not None:
            await self._confirm(self._registry.live[self._registry.served_step])

    async def serve_again(self, step: int, checkpoint_dir: Path) -> None:
        """Make an older step addressable, without changing what rollouts get by default.

        A step that is addressable already, and that the caller has acquired, is not waited for while another one is
        published.
        """
        if step in self._registry.live and step not in self._in_transit:
            return
        async with self._lock:
            if step in self._registry.live:
                return
            adapter, *_ = await self._load_until_confirmed(step, checkpoint_dir, is_probed=False)
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

    async def _confirm_again(self, live: AdapterFiles) -> float | None:
        """Confirm an adapter that every server starts with."""
        while True:
            server = await self._runtime.settled()
            try:
                return await self._confirm_patiently(live, server)
            except LocalServingUnavailableError:
                if await self._runtime.settled() == server:
                    raise

    async def _replace(
        self, replaced: AdapterFiles | None, step: int, checkpoint_dir: Path
    ) -> tuple[float | None, int]:
        self._in_transit.add(step)
        try:
            if replaced is not None:
                await self._runtime.unload_adapter(replaced.name)
            adapter, gap, attempts = await self._load_until_confirmed(step, checkpoint_dir)
        except BaseException:
            if replaced is not None:
                await uninterrupted(self._restore(replaced))
            raise
        finally:
            self._in_transit.discard(step)
        self._registry.commit(adapter)
        return gap, attempts

    async def _load_until_confirmed(
        self, step: int, checkpoint_dir: Path, *, is_probed: bool = True
    ) -> tuple[AdapterFiles, float | None, int]:
        """Load and confirm, again for each server that takes the place of one that ended in between.

        Returns:
            The adapter, its gap, and the load requests that it took.
        """
        attempts = 0
        while True:
            server = await self._runtime.settled()
            adapter, requests = await self._load(step, checkpoint_dir)
            attempts += requests
            try:
                return adapter, await self._confirm_patiently(adapter, server, is_probed=is_probed), attempts
            except BaseException as err:
                await uninterrupted(self._withdraw(adapter))
                if not isinstance(err, InferenceError) or await self._runtime.settled() == server:
                    raise
                logger.warning("adapter loaded again, on another server: name=%s cause=%s", adapter.name, err)

    async def _confirm_patiently(self, adapter: AdapterFiles, server: int, *, is_probed: bool = True) -> float | None:
        """Confirm an adapter through connection faults, but not through the end of the server that has it."""
        deadline = time.monotonic() + CONFIRM_LIMIT_S
        wait_s = FIRST_WAIT_S
        while True:
            try:
                await self._require_listed(adapter)
                return await self._confirm(adapter) if is_probed else None
            except LocalServingUnavailableError as err:
                if await self._runtime.settled() != server or time.monotonic() >= deadline:
                    raise
                if "status" in err.facts and await self._is_healthy():
                    raise AdapterNotServedError(str(err), step=adapter.step) from err
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _is_healthy(self) -> bool:
        """Whether the server answers for its base model, so that a failure is the adapter's own."""
        try:
            await self._runtime.check_health()
        except LocalServingUnavailableError:
            return False
        return True

    async def _restore(self, replaced: AdapterFiles) -> None:
        """Serve a step's former files again, after their successor could not be served."""
        try:
            async with asyncio.timeout(CLEAN_UP_LIMIT_S):
                await self._runtime.load_adapter(replaced)
                await self._runtime.reset_prefix_cache()
        except (InferenceError, TimeoutError) as err:
            logger.warning("former adapter not served again: name=%s cause=%s", replaced.name, err)

    async def _load(self, step: int, checkpoint_dir: Path) -> tuple[AdapterFiles, int]:
        adapter = await asyncio.to_thread(self._registry.stage, step, checkpoint_dir)
        try:
            check_adapter(
                adapter,
                max_lora_rank=self._runtime.max_lora_rank,
                base_model_name=self._runtime.base_model_name,
            )
        except BaseException:
            self._registry.discard(adapter)
            raise
        try:
            attempts = await self._runtime.load_adapter(adapter)
            if not self._registry.claim_name(adapter.name):
                # vLLM keys its prefix cache by adapter name: under a name that comes back, old prompts would be found.
                await self._runtime.reset_prefix_cache()
        except AdapterLoadError:
            self._registry.discard(adapter)
            raise
        except BaseException:
            await uninterrupted(self._withdraw(adapter))  # it may be loaded all the same
            raise
        return adapter, attempts

    async def _require_listed(self, adapter: AdapterFiles) -> None:
        with translated(adapter, self._client.base_url):
            listed = await self._client.list_models()
        if adapter.name not in listed:
            raise not_listed(adapter, self._client.base_url, listed, self._registry)

    async def _confirm(self, adapter: AdapterFiles) -> float | None:
        probe = await asyncio.to_thread(AdapterProbe.read, adapter.path)
        if probe is None:
            logger.info("adapter not probed: name=%s (its checkpoint holds no probe)", adapter.name)
            return None
        with translated(adapter, self._client.base_url):
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
            raise stale(adapter, self._client.base_url, verdict, self._registry.served_step)
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
            async with asyncio.timeout(
                CLEAN_UP_LIMIT_S
            ):  # a restart is not waited for: the next server does not know it
                await self._runtime.unload_adapter(adapter.name)
        except (AdapterLoadError, LocalServingUnavailableError, TimeoutError) as err:
            logger.warning("adapter not withdrawn: name=%s cause=%s", adapter.name, err)
            self._registry.retire(adapter)  # a server that does not answer may still read the files
            return
        self._registry.discard(adapter)

    async def _retire_unneeded(self) -> None:
        await self._retire(self._registry.retirable(keep_newest=self._max_live))

    async def _retire(self, adapters: list[AdapterFiles]) -> list[int]:
        """Tidy up after the fact: a failure here is logged, since the new step is served all the same."""
        retired = []
        try:
            for adapter in adapters:
                if adapter.step in self._registry.leased_steps():
                    continue  # acquired while those before it were unloaded
                self._in_transit.add(adapter.step)
                await self._runtime.unload_adapter(adapter.name)
                self._registry.retire(adapter)
                retired.append(adapter.step)
            self._registry.sweep(await self._runtime.requests_in_flight())
        except (AdapterLoadError, LocalServingUnavailableError) as err:
            logger.warning("old adapters not unloaded: cause=%s", err)
        finally:
            self._in_transit.difference_update(adapter.step for adapter in adapters)
        return retired
