"""The engine or the whole service is killed: it is noticed at once, everybody is told why, and registering again works.

Also: two models of one name, in two projects of one backend, have nothing to do with each other.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from art.errors import LocalServingUnavailableError
from tests.integration.local.conftest import START_TIMEOUT_S, SharedRun
from tests.support.local_run import (
    Tiny,
    fixed_logprobs,
    listed_names,
    make_model,
    plain_client,
    rollout,
    sample,
    train_step,
)
from tests.support.waiting import is_running, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NOTICED_WITHIN_S = 5.0
HANG_NOTICED_WITHIN_S = 40.0  # three checks of three seconds and a half
LONG_ANSWER_TOKENS = 900


@pytest.fixture(scope="module")
def doomed(shared: SharedRun, tiny_base: Path) -> Iterator[Tiny]:
    """A model of the same name as the shared one, in another project.

    Its port is fixed, so that clients made before the server died know the address of the next one too.
    """
    serving = {"health_interval_s": 0.5, "health_timeout_s": 3.0}
    model = make_model(tiny_base, project="other", serving=serving)
    register(shared, model, free_port())
    yield model
    shared.loop.run(model.openai_client().close())


def register(shared: SharedRun, model: Tiny, port: int | None = None) -> None:
    port = port or int(str(model.inference_base_url).split(":")[2].split("/")[0])
    config: Any = {"server_args": {"port": port}}
    shared.loop.run(model.register(shared.backend, _openai_client_config=config), START_TIMEOUT_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def service_pid(shared: SharedRun, model: Tiny) -> int:
    return int(shared.backend._services[model.project, model.name].actor.process.pid)


def engine_pid(service: int) -> int:
    """Find the engine's process among a service's children."""
    children = Path(f"/proc/{service}/task/{service}/children").read_text().split()
    threads = [path.name for path in Path(f"/proc/{service}/task").iterdir()]
    for thread in threads:
        children += Path(f"/proc/{service}/task/{thread}/children").read_text().split()
    found = {int(pid) for pid in children if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text()}
    assert len(found) == 1, found
    return found.pop()


async def failure_of(work: Coroutine[Any, Any, Any]) -> LocalServingUnavailableError:
    """Return the error that rollouts and calls end with, as it is or as the cause that OpenAI's client wraps."""
    try:
        await work
    except LocalServingUnavailableError as err:
        return err
    except Exception as err:
        if isinstance(err.__cause__, LocalServingUnavailableError):
            return err.__cause__
        raise
    raise AssertionError("nothing was raised")


async def answer_at_length(model: Tiny) -> None:
    await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=[{"role": "user", "content": "say it again"}],
        max_tokens=LONG_ANSWER_TOKENS,
        extra_body={"ignore_eos": True},
    )


async def running_requests(client: httpx.AsyncClient, model: Tiny) -> int:
    text = (await client.get(str(model.inference_base_url).replace("/v1", "/metrics"))).text
    return int(sum(float(value) for value in re.findall(r"^vllm:num_requests_running{.*} (\S+)", text, re.MULTILINE)))


async def stop_while_sampling(
    model: Tiny, pid: int, sig: signal.Signals
) -> tuple[list[LocalServingUnavailableError], float]:
    """Kill or suspend a process while rollouts are under way; return what they end with, and after how long."""
    rollouts = [asyncio.create_task(failure_of(answer_at_length(model))) for _ in range(4)]
    async with plain_client() as client:
        running = 0
        while running < len(rollouts):
            running = await running_requests(client, model)
    os.kill(pid, sig)
    killed = time.monotonic()
    async with asyncio.timeout(60):
        failures = list(await asyncio.gather(*rollouts))
    return failures, time.monotonic() - killed


def expect_everything_refuses(shared: SharedRun, model: Tiny) -> None:
    with pytest.raises(LocalServingUnavailableError):
        model.get_inference_name()
    with pytest.raises(LocalServingUnavailableError):
        shared.loop.run(train_step(shared.backend, model, []), 10)
    assert isinstance(shared.loop.run(failure_of(rollout(model, "say yes", 0.0)), 10), LocalServingUnavailableError)


def test_models_of_one_name_in_two_projects_are_apart(shared: SharedRun, doomed: Tiny) -> None:
    assert doomed.inference_base_url != shared.model.inference_base_url
    theirs = shared.model.get_inference_name()
    assert shared.loop.run(train_step(shared.backend, doomed)).step == 1
    assert doomed.get_inference_name() == doomed.inference_model_name == "tiny@1"
    assert shared.model.get_inference_name() == shared.model.inference_model_name == theirs
    assert (shared.path / "other" / "models" / "tiny" / "checkpoints" / "0001").is_dir()


def test_killed_engine_is_noticed_and_registering_again_works(shared: SharedRun, doomed: Tiny) -> None:
    before = shared.loop.run(fixed_logprobs(doomed))
    served, service = doomed.get_inference_name(), service_pid(shared, doomed)
    engine = engine_pid(service)

    failures, took_s = shared.loop.run(stop_while_sampling(doomed, engine, signal.SIGKILL))

    assert took_s < NOTICED_WITHIN_S
    log_path = str(shared.path / "other" / "models" / "tiny" / "logs" / "vllm.log")
    for failure in failures:
        assert failure.facts["exit_code"] == -signal.SIGKILL
        assert failure.facts["pid"] == engine
        assert failure.facts["log_path"] == log_path
        assert "killed by SIGKILL" in str(failure)
        assert failure.facts["log_tail"].splitlines()[-1] in str(failure)
    expect_everything_refuses(shared, doomed)
    assert shared.loop.run(fixed_logprobs(shared.model)), "the other model serves on"

    client = doomed.openai_client()
    register(shared, doomed)

    wait_until(lambda: not is_running(service))
    assert doomed.openai_client() is client
    assert doomed.get_inference_name() == served
    assert shared.loop.run(fixed_logprobs(doomed)) == pytest.approx(before, abs=1e-4)
    assert shared.loop.run(train_step(shared.backend, doomed)).step == 2


def test_killed_service_is_noticed_and_registering_again_works(shared: SharedRun, doomed: Tiny) -> None:
    service = service_pid(shared, doomed)
    engine = engine_pid(service)

    failures, took_s = shared.loop.run(stop_while_sampling(doomed, service, signal.SIGKILL))

    assert took_s < NOTICED_WITHIN_S
    log_path = str(shared.path / "other" / "models" / "tiny" / "logs" / "vllm.log")
    for failure in failures:
        assert failure.facts["exit_code"] == -signal.SIGKILL
        assert failure.facts["log_path"] == log_path
        assert "killed by SIGKILL" in str(failure)
    wait_until(lambda: not is_running(engine))
    expect_everything_refuses(shared, doomed)

    register(shared, doomed)

    assert "tiny@2" in shared.loop.run(listed_names(doomed))
    assert shared.loop.run(train_step(shared.backend, doomed)).step == 3


def test_engine_that_hangs_is_ended_and_registering_again_works(shared: SharedRun, doomed: Tiny) -> None:
    engine = engine_pid(service_pid(shared, doomed))

    failures, took_s = shared.loop.run(stop_while_sampling(doomed, engine, signal.SIGSTOP))

    assert took_s < HANG_NOTICED_WITHIN_S
    for failure in failures:
        assert "it had not answered and was ended" in str(failure)
        assert failure.facts["pid"] == engine
    wait_until(lambda: not is_running(engine))
    expect_everything_refuses(shared, doomed)
    register(shared, doomed)
    assert shared.loop.run(fixed_logprobs(doomed))


def test_engine_killed_while_a_step_is_trained_costs_no_step(shared: SharedRun, doomed: Tiny) -> None:
    groups = shared.loop.run(sample(doomed))
    engine = engine_pid(service_pid(shared, doomed))

    async def scenario() -> LocalServingUnavailableError:
        shared.faults.order("loss", "wait", after=1)
        training = asyncio.create_task(failure_of(train_step(shared.backend, doomed, groups)))
        await asyncio.to_thread(shared.faults.wait_reached)
        os.kill(engine, signal.SIGKILL)
        shared.faults.go_on()
        async with asyncio.timeout(30):
            return await training

    assert shared.loop.run(scenario()).facts["exit_code"] == -signal.SIGKILL
    shared.faults.clear()
    assert (shared.path / "other" / "models" / "tiny" / "checkpoints" / "0004").is_dir()
    expect_everything_refuses(shared, doomed)
