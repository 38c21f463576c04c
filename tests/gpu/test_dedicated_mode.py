"""Trainer and server, each a process of its own, on one GPU. The tests build on each other's server, in this order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.gpu_run import ENGINE_ARGS, GpuRun, registered
from tests.support.waiting import is_running, wait_until

logger = logging.getLogger(__name__)

CONFIG: dict[str, Any] = {
    "trainer_gpu_ids": [0],
    "inference_gpu_ids": [0],
    "serving": {"share_gpu": True},
    "engine_args": ENGINE_ARGS,
}
SERVER_MODULE = "art.vllm.dedicated_server"
MEMORY_SPREAD = 0.05
PROMPT = list(range(300, 380))
NOISE_NATS = 0.1
RESTART_TIMEOUT_S = 200.0


@pytest.fixture(scope="module")
def run(base_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuRun]:
    with registered(base_model, tmp_path_factory.mktemp("dedicated"), "dedicated", CONFIG) as run:
        yield run


def server() -> psutil.Process:
    """Return the server's process."""
    (found,) = [child for child in psutil.Process().children(recursive=True) if SERVER_MODULE in _command(child)]
    return found


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_step_is_trained_while_answers_go_on(run: GpuRun) -> None:
    async def train_meanwhile() -> tuple[list[tuple[list[int], str]], float]:
        groups = await run.sample()
        answers = [asyncio.create_task(run.greedy(PROMPT, 300)) for _ in range(4)]
        result = await run.train(groups)
        return await asyncio.gather(*answers), result.metrics["sync/served_step"]

    for step in (1, 2):
        answers, served = run.loop.run(train_meanwhile(), 200)
        assert served == step
        assert [(len(tokens), reason) for tokens, reason in answers] == [(300, "length")] * 4
        assert run.model.get_inference_name() == f"dedicated@{step}"


@pytest.mark.parametrize("victim", ["server", "engine"])
def test_a_killed_server_frees_its_memory_and_another_takes_its_place(run: GpuRun, victim: str) -> None:
    before, used, name = run.scores(), run.used_mib(), run.model.get_inference_name()
    old = server()
    engine = [child for child in old.children(recursive=True) if "EngineCore" in _command(child) + child.name()]
    assert engine
    os.kill(old.pid if victim == "server" else engine[0].pid, signal.SIGKILL)
    wait_until(lambda: not is_running(old.pid), 30)
    answer, reason = run.loop.run(run.greedy(PROMPT, 16), RESTART_TIMEOUT_S)
    assert (len(answer), reason) == (16, "length")
    assert server().pid != old.pid
    wait_until(lambda: not any(is_running(process.pid) for process in (old, *engine)), 10)
    assert run.model.get_inference_name() == name
    assert max(abs(a - b) for a, b in zip(run.scores(), before, strict=True)) <= NOISE_NATS
    logger.info("memory: %d MiB before, %d after", used, run.used_mib())
    assert abs(run.used_mib() - used) <= MEMORY_SPREAD * used


def test_training_goes_on_with_the_new_server(run: GpuRun) -> None:
    step = int(run.model.get_inference_name().rpartition("@")[2])
    assert run.step().metrics["sync/served_step"] == step + 1


def test_nothing_is_left_when_the_backend_is_closed(run: GpuRun) -> None:
    run.close_and_check()
