"""A served model as the package wires it, on a scripted server, with rollouts that ask it all the time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI

from art.checkpoints import checkpoint_dir, stage_checkpoint
from art.dev.settings import ServingSettings
from art.inference.adapters import AdapterRegistry
from art.inference.gate import ServingGate
from art.inference.monitor import ServingMonitor
from art.inference.process_server import ServerSpec
from art.inference.publish import AdapterPublisher, Publication
from art.inference.rollout_transport import RolloutTransport
from art.inference.supervised import SupervisedRuntime
from art.probe import AdapterProbe
from tests.support.scripted_faults import Faults, script_starts, started_pids
from tests.support.scripted_http import free_port

MODEL = "policy"
BASE = "base-model"
PROBE_TOKENS = (5, 6, 7, 6, 8, 6)
SETTINGS = ServingSettings(
    inference_restarts=2,
    adapter_reload_timeout_s=20.0,
    server_start_timeout_s=30.0,
    health_interval_s=0.5,
    health_timeout_s=3.0,
    rollout_wait_s=30.0,
)


def save_step(model_dir: Path, step: int, *, rank: int = 8, with_probe: bool = True) -> Path:
    """Write a checkpoint: one number as weights, and the probe that a trainer would have taken."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    with stage_checkpoint(model_dir, step) as staging:
        weights = struct.pack("<Q", len(header)) + header + struct.pack("<f", step + 0.5)
        (staging / "adapter_model.safetensors").write_bytes(weights)
        (staging / "adapter_config.json").write_text(json.dumps({"r": rank}))
        if with_probe:
            logprobs = tuple(-2.0 - step - 0.25 * position for position in range(len(PROBE_TOKENS) - 1))
            AdapterProbe(PROBE_TOKENS, logprobs, (-1.0,) * len(logprobs), "float32").write(staging)
    return checkpoint_dir(model_dir, step)


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Return as soon as the condition holds; fail after the time-out."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"condition not met within {timeout_s} s")
        await asyncio.sleep(0.01)


@dataclass
class Stand:
    """A model that is served.

    Attributes:
        events: What the runtime told its owner, oldest first.
    """

    model_dir: Path
    runtime: SupervisedRuntime
    registry: AdapterRegistry
    publisher: AdapterPublisher
    monitor: ServingMonitor
    gate: ServingGate
    client: AsyncOpenAI
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def started_pids(self) -> list[int]:
        """The servers that were started so far."""
        return started_pids(self.model_dir / "script")

    @property
    def log(self) -> str:
        """The running server's log."""
        return (self.model_dir / "logs" / "vllm-dedicated.log").read_text()

    async def publish(self, step: int) -> Publication:
        """Save a step and publish it."""
        path = checkpoint_dir(self.model_dir, step)
        return await self.publisher.publish(step, path if path.exists() else save_step(self.model_dir, step))

    async def control(self, **orders: Any) -> dict[str, Any]:
        """Change the running server's faults; return its report."""
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            url = self.runtime.base_url.removesuffix("/v1") + "/control"
            response = await (http.post(url, json=orders) if orders else http.get(url))
            return dict(response.raise_for_status().json())

    async def ask(self, step: int | None = None, question: str = "Say yes.") -> str:
        """Have one answer, from the served step if none is given: the digest of the files that it came from."""
        step = self.registry.served_step if step is None else step
        answer = await self.client.chat.completions.create(
            model=f"{MODEL}@{step}", messages=[{"role": "user", "content": question}]
        )
        return str(answer.choices[0].message.content)

    def handle_event(self, event: Mapping[str, Any]) -> None:
        """Do what the model's host does with its events."""
        self.events.append(dict(event))
        if event["kind"] == "unavailable":
            self.gate.fail(event["error"])
        elif event["kind"] == "recovering":
            self.gate.close(event["text"], event.get("facts"))
        elif event["kind"] == "recovered":
            self.gate.open()


def server_spec(model_dir: Path, starts: Sequence[Faults] = (), **changes: Any) -> ServerSpec:
    """Describe a scripted server in a child process."""
    fields: dict[str, Any] = {
        "model": BASE,
        "engine_args": {"dtype": "float32", "max_lora_rank": 8},
        "server_args": {},
        "host": "127.0.0.1",
        "port": free_port(),
        "log_path": model_dir / "logs" / "vllm-dedicated.log",
        "start_timeout_s": 20.0,
        "module": "tests.support.scripted_server",
        "env": script_starts(model_dir / "script", starts),
    }
    return ServerSpec(**(fields | changes))


def rollout_client(runtime_url: str, gate: ServingGate, wait_s: float, **timeouts: Any) -> AsyncOpenAI:
    """Return a client as rollouts get it, except that it tries nothing again by itself."""
    transport = RolloutTransport(gate, wait_s=wait_s, limits=httpx.Limits(max_connections=None, keepalive_expiry=4.0))
    timeout = httpx.Timeout(60.0, **timeouts)
    http_client: Any = httpx.AsyncClient(transport=transport, timeout=timeout)
    return AsyncOpenAI(base_url=runtime_url, api_key="default", http_client=http_client, max_retries=0)


@contextlib.asynccontextmanager
async def serving(
    model_dir: Path,
    *,
    starts: Sequence[Faults] = (),
    settings: ServingSettings = SETTINGS,
    steps: Sequence[int] = (0,),
    monitored: bool = True,
    **changes: Any,
) -> AsyncIterator[Stand]:
    """Start a scripted server and publish some steps; take everything down again.

    Args:
        model_dir: The model's folder.
        starts: Faults of each start.
        settings: How the server is watched and restarted.
        steps: Published at once.
        monitored: Whether health checks run.
        changes: To the server's description.
    """
    runtime = await SupervisedRuntime.start(server_spec(model_dir, starts, **changes), settings)
    registry = AdapterRegistry(MODEL, model_dir)
    publisher = AdapterPublisher(runtime, registry, max_logprob_gap=None, max_live_adapters=settings.max_live_adapters)
    monitor = ServingMonitor(runtime, interval_s=settings.health_interval_s, on_failure=runtime.end_hung)
    gate = ServingGate()
    client = rollout_client(runtime.base_url, gate, settings.rollout_wait_s)
    stand = Stand(model_dir, runtime, registry, publisher, monitor, gate, client)
    runtime.live_adapters = lambda: sorted(registry.live.values(), key=lambda adapter: adapter.step)
    runtime.on_restarted = publisher.confirm_after_restart
    runtime.on_event = stand.handle_event
    try:
        for step in steps:
            await stand.publish(step)
        if monitored:
            monitor.start()
        yield stand
    finally:
        await client.close()
        await monitor.stop()
        await publisher.close()
        await runtime.close()
        registry.close()


class Rollouts:
    """Clients that ask for the served step over and over, until the block ends.

    Attributes:
        answers: Answers had, by client.
        failures: Errors met; each ends its client.
    """

    def __init__(self, stand: Stand, count: int = 16) -> None:
        self.answers = [0] * count
        self.failures: list[BaseException] = []
        self._stand = stand
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Rollouts:
        self._tasks = [asyncio.create_task(self._ask(client)) for client in range(len(self.answers))]
        await self.go_on()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def go_on(self, timeout_s: float = 30.0) -> None:
        """Wait until every client has had two more answers: the second was asked for after this call."""
        wanted = [count + 2 for count in self.answers]
        await eventually(
            lambda: bool(self.failures) or all(a >= b for a, b in zip(self.answers, wanted, strict=True)), timeout_s
        )
        if self.failures:
            raise self.failures[0]

    async def all_fail(self, timeout_s: float = 10.0) -> list[BaseException]:
        """Wait until every client has met an error."""
        await eventually(lambda: len(self.failures) == len(self.answers), timeout_s)
        return self.failures

    async def _ask(self, client: int) -> None:
        try:
            while True:
                await self._stand.ask()
                self.answers[client] += 1
                await asyncio.sleep(0.05)
        except Exception as err:  # noqa: BLE001 - what a test looks at
            self.failures.append(err)
