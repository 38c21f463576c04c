"""The server of dedicated mode with real vLLM: faults that a real server can be made to show."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from art.dev.settings import ServingSettings
from art.errors import AdapterLoadError
from art.inference.adapters import AdapterRegistry
from art.inference.gate import ServingGate
from art.inference.monitor import ServingMonitor
from art.inference.process_server import ServerSpec, open_listener
from art.inference.publish import AdapterPublisher, Publication
from art.inference.rollout_transport import RolloutTransport
from art.inference.supervised import SupervisedRuntime
from tests.integration.conftest import LIVE_ADAPTERS, TinyModel, plan_tiny_engine
from tests.support.loop_thread import LoopThread
from tests.support.tiny_model import make_adapter
from tests.support.waiting import is_running, wait_until

pytestmark = pytest.mark.integration

ROLLOUTS = 16
SETTINGS = ServingSettings(
    inference_restarts=20, health_interval_s=1.0, health_timeout_s=20.0, rollout_wait_s=200.0, max_live_adapters=6
)


@dataclass
class Dedicated:
    """A real server in a child process, and rollouts through the transport that scripts get."""

    loop: LoopThread
    runtime: SupervisedRuntime
    gate: ServingGate
    folder: Path
    publishers: list[AdapterPublisher] = field(default_factory=list)

    def publisher(self, model_name: str, live: int = LIVE_ADAPTERS) -> tuple[AdapterPublisher, AdapterRegistry]:
        """Return a publisher for another model on the same server."""
        registry = AdapterRegistry(model_name, self.folder / model_name)
        publisher = AdapterPublisher(self.runtime, registry, max_logprob_gap=None, max_live_adapters=live)
        self.runtime.live_adapters = lambda: sorted(registry.live.values(), key=lambda adapter: adapter.step)
        self.runtime.on_restarted = publisher.confirm_after_restart
        self.publishers.append(publisher)
        return publisher, registry

    def client(self) -> httpx.AsyncClient:
        """Return a client as rollouts have it."""
        transport = RolloutTransport(self.gate, wait_s=SETTINGS.rollout_wait_s, limits=httpx.Limits(max_connections=64))
        headers = {"Authorization": f"Bearer {self.runtime.api_key}"}
        return httpx.AsyncClient(transport=transport, timeout=120, headers=headers)


def make_spec(tiny: TinyModel, folder: Path) -> ServerSpec:
    plan = plan_tiny_engine(tiny.base)
    engine_args = {**plan.engine_args, "max_cpu_loras": SETTINGS.max_live_adapters + 2, "max_loras": 2}
    folder.mkdir(parents=True, exist_ok=True)
    return ServerSpec(
        model=str(tiny.base),
        engine_args=engine_args,
        server_args=plan.server_args,
        host="127.0.0.1",
        port=0,
        log_path=folder / "vllm-dedicated.log",
        start_timeout_s=280,
    )


@pytest.fixture(scope="module")
def dedicated(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dedicated]:
    folder = tmp_path_factory.mktemp("dedicated")
    loop, gate = LoopThread(), ServingGate()
    runtime = loop.run(SupervisedRuntime.start(make_spec(tiny, folder), SETTINGS), timeout_s=290)

    def tell_gate(event: Any) -> None:
        if event["kind"] == "recovering":
            gate.close(event["text"])
        elif event["kind"] == "recovered":
            gate.open()
        elif event["kind"] == "unavailable":
            gate.fail(event["error"])

    runtime.on_event = tell_gate
    running = Dedicated(loop, runtime, gate, folder)
    yield running
    for publisher in running.publishers:
        loop.run(publisher.close())
    loop.run(runtime.close())
    loop.close()


async def chat(client: httpx.AsyncClient, url: str, name: str, tokens: int = 16) -> httpx.Response:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": "say the word " * 12}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    return await client.post(f"{url}/chat/completions", json=body)


async def tokens_of(dedicated: Dedicated, name: str) -> list[int]:
    async with dedicated.client() as client:
        response = await chat(client, dedicated.runtime.base_url, name)
    assert response.status_code == 200, response.text
    return list(response.json()["choices"][0]["token_ids"])


def test_steps_are_served_by_the_process(dedicated: Dedicated, tiny: TinyModel) -> None:
    publisher, registry = dedicated.publisher("plain")
    for step in range(4):
        publication = dedicated.loop.run(publisher.publish(step, tiny.adapters[step]))
        assert publication.logprob_gap is not None
        assert publication.logprob_gap < 1e-4
    assert registry.served_step == 3
    assert sorted(registry.live) == [1, 2, 3]
    answers = [tuple(dedicated.loop.run(tokens_of(dedicated, f"plain@{step}"))) for step in (1, 2, 3)]
    assert len(set(answers)) == 3


def test_refusal_carries_the_servers_own_words_and_is_not_tried_again(
    dedicated: Dedicated, tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, registry = dedicated.publisher("refused")
    dedicated.loop.run(publisher.publish(1, tiny.adapters[1]))
    wide = make_adapter(tiny.base, tmp_path / "wide", seed=9, rank=16)
    monkeypatch.setattr("art.inference.publish.check_adapter", lambda *args, **kwargs: None)
    with pytest.raises(AdapterLoadError, match="max_lora_rank") as caught:
        dedicated.loop.run(publisher.publish(2, wide))
    assert caught.value.status is not None
    assert registry.served_step == 1
    assert len(dedicated.loop.run(tokens_of(dedicated, "refused@1"))) == 16


def test_new_step_each_moment_under_load_with_old_checkpoints_deleted(
    dedicated: Dedicated, tiny: TinyModel, tmp_path: Path
) -> None:
    """Two slots, names up to four steps old in use, all checkpoints but the newest deleted: a bare server dies here."""
    steps = 35
    publisher, registry = dedicated.publisher("load", live=SETTINGS.max_live_adapters)
    checkpoints = tmp_path / "checkpoints"

    def save(step: int) -> Path:
        folder = checkpoints / f"{step:04d}"
        shutil.copytree(tiny.adapters[step % len(tiny.adapters)], folder)
        for older in checkpoints.iterdir():
            if older != folder:
                shutil.rmtree(older)
        return folder

    async def scenario() -> Counter[int]:
        statuses: Counter[int] = Counter()
        done = asyncio.Event()
        rng = random.Random(0)
        await publisher.publish(0, save(0))

        async def roll_out(client: httpx.AsyncClient) -> None:
            while not done.is_set():
                name = f"load@{max(0, (registry.served_step or 0) - rng.randint(0, 4))}"
                response = await chat(client, dedicated.runtime.base_url, name, rng.choice([16, 64, 128]))
                statuses[response.status_code] += 1

        async with dedicated.client() as client:
            rollouts = [asyncio.create_task(roll_out(client)) for _ in range(ROLLOUTS)]
            for step in range(1, steps + 1):
                await publisher.publish(step, save(step))
                answered = statuses.total()
                while statuses.total() < answered + 4 and not any(task.done() for task in rollouts):
                    await asyncio.sleep(0.01)
            done.set()
            await asyncio.gather(*rollouts)
        return statuses

    pid = dedicated.runtime.process.pid
    statuses = dedicated.loop.run(scenario(), timeout_s=280)
    assert set(statuses) == {200}
    assert registry.served_step == steps
    assert dedicated.runtime.process.pid == pid
    kept = list((dedicated.folder / "load" / "serving").glob("*/*"))
    assert len(kept) <= SETTINGS.max_live_adapters + 1


@pytest.mark.parametrize("victim", ["server", "engine"])
def test_killed_server_comes_back_with_every_live_step_and_rollouts_go_on(
    dedicated: Dedicated, tiny: TinyModel, victim: str
) -> None:
    model_name = f"killed{victim}"
    publisher, registry = dedicated.publisher(model_name)
    for step in (1, 2):
        dedicated.loop.run(publisher.publish(step, tiny.adapters[step]))
    before = dedicated.loop.run(tokens_of(dedicated, f"{model_name}@1"))
    server = dedicated.runtime.process.pid
    doomed = server if victim == "server" else engine_core_of(server)

    async def scenario() -> list[int]:
        async with dedicated.client() as client:
            url = dedicated.runtime.base_url
            waiting = [asyncio.create_task(chat(client, url, f"{model_name}@1", 200)) for _ in range(ROLLOUTS)]
            while not (await dedicated.runtime.requests_in_flight()).get(f"{model_name}@1"):
                await asyncio.sleep(0.01)
            os.kill(doomed, signal.SIGKILL)
            return [response.status_code for response in await asyncio.gather(*waiting)]

    assert dedicated.loop.run(scenario(), timeout_s=280) == [200] * ROLLOUTS
    assert dedicated.runtime.process.pid != server
    assert dedicated.loop.run(tokens_of(dedicated, f"{model_name}@1")) == before
    assert dedicated.loop.run(publisher.publish(3, tiny.adapters[3])).step == 3
    assert registry.served_step == 3
    assert not is_running(server)


@dataclass
class Stopped:
    """A server or engine that was suspended while rollouts were under way, and a publication that waits for it."""

    publishing: asyncio.Task[Publication]
    rollouts: list[asyncio.Task[httpx.Response]]

    async def all_is_well(self) -> bool:
        """Wait for everything; return whether the step is served and no rollout has failed."""
        answers = await asyncio.gather(*self.rollouts)
        return (await self.publishing).step == 2 and all(answer.status_code == 200 for answer in answers)


@contextlib.asynccontextmanager
async def stopped(dedicated: Dedicated, tiny: TinyModel, model_name: str, pid: int) -> AsyncIterator[Stopped]:
    publisher, _ = dedicated.publisher(model_name)
    await publisher.publish(1, tiny.adapters[1])
    async with dedicated.client() as client:
        url = dedicated.runtime.base_url
        rollouts = [asyncio.create_task(chat(client, url, f"{model_name}@1", 200)) for _ in range(ROLLOUTS)]
        while not (await dedicated.runtime.requests_in_flight()).get(f"{model_name}@1"):
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        publishing = asyncio.create_task(publisher.publish(2, tiny.adapters[2]))
        done, _ = await asyncio.wait({publishing}, timeout=3.0)
        assert not done
        yield Stopped(publishing, rollouts)


def test_stopped_and_continued_it_is_waited_for(dedicated: Dedicated, tiny: TinyModel) -> None:
    server = dedicated.runtime.process.pid

    async def scenario() -> bool:
        async with stopped(dedicated, tiny, "continued", server) as waiting:
            os.kill(server, signal.SIGCONT)
            return await waiting.all_is_well()

    assert dedicated.loop.run(scenario(), timeout_s=280)
    assert dedicated.runtime.process.pid == server


def test_killed_in_the_middle_of_a_load_it_loads_again_on_the_next_server(
    dedicated: Dedicated, tiny: TinyModel
) -> None:
    server = dedicated.runtime.process.pid

    async def scenario() -> bool:
        async with stopped(dedicated, tiny, "midload", engine_core_of(server)) as waiting:
            os.kill(server, signal.SIGKILL)
            return await waiting.all_is_well()

    assert dedicated.loop.run(scenario(), timeout_s=280)
    assert not is_running(server)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["server", "engine"])
def test_stopped_for_good_it_is_ended_and_replaced(
    dedicated: Dedicated, tiny: TinyModel, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is stopped hangs behind a server that calls itself healthy: a completion shows it."""
    monkeypatch.setattr(dedicated.runtime, "_settings", dataclasses.replace(SETTINGS, health_timeout_s=6.0))
    server = dedicated.runtime.process.pid
    engine = engine_core_of(server)

    async def scenario() -> bool:
        monitor = ServingMonitor(dedicated.runtime, interval_s=1.0, on_failure=dedicated.runtime.end_hung)
        async with stopped(dedicated, tiny, f"hung{victim}", server if victim == "server" else engine) as waiting:
            monitor.start()
            try:
                return await waiting.all_is_well()
            finally:
                await monitor.stop()

    assert dedicated.loop.run(scenario(), timeout_s=280)
    assert not is_running(server)
    assert not is_running(engine)


def engine_core_of(server: int) -> int:
    """Return the engine's own process below a server."""
    (engine,) = children_of(server, "EngineCor")
    return engine


def children_of(parent: int, name_part: str) -> list[int]:
    """Return the processes below another whose names hold a text."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = status.read_text().partition(" ")
            name, _, fields = rest.rpartition(")")
        except OSError:
            continue
        if int(fields.split()[1]) == parent and name_part in name:
            found.append(int(pid))
    return found


def test_own_routes_ask_for_the_key(dedicated: Dedicated) -> None:
    async def statuses() -> list[int]:
        root = dedicated.runtime.base_url.removesuffix("/v1")
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            wrong = {"Authorization": "Bearer wrong"}
            answers = [await client.get(f"{root}/art/in_flight", headers=headers) for headers in ({}, wrong)]
            answers.append(await client.post(f"{root}/art/reset_prefix_cache"))
        return [answer.status_code for answer in answers]

    assert dedicated.loop.run(statuses()) == [401, 401, 401]
    assert dedicated.loop.run(dedicated.runtime.requests_in_flight()) == {}


def test_asked_to_end_while_its_engine_starts_it_ends_at_once(tiny: TinyModel, tmp_path: Path) -> None:
    spec = make_spec(tiny, tmp_path)
    with open_listener(spec.host, spec.port) as listener, spec.log_path.open("wb") as log:
        process = subprocess.Popen(
            spec.command((), listener), stdout=log, stderr=log, pass_fds=[listener.fileno()], env={**os.environ}
        )
        wait_until(lambda: bool(children_of(process.pid, "EngineCor")), timeout_s=120.0)
        (engine,) = children_of(process.pid, "EngineCor")
        process.terminate()
        assert process.wait(5) == -signal.SIGTERM
    wait_until(lambda: not is_running(engine), timeout_s=8.0)


PARENT = """
import asyncio, pickle, sys
from art.inference.supervised import SupervisedRuntime
from tests.integration.test_dedicated import SETTINGS

async def main():
    spec = pickle.loads(bytes.fromhex(sys.argv[1]))
    runtime = await SupervisedRuntime.start(spec, SETTINGS)
    print(runtime.process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_nothing_outlives_a_killed_parent(tiny: TinyModel, tmp_path: Path) -> None:
    import pickle

    spec = pickle.dumps(make_spec(tiny, tmp_path)).hex()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, spec], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    engine = engine_core_of(server)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_running(server) and not is_running(engine), timeout_s=5.0)
