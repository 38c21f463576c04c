"""LocalBackend in dedicated mode: rollouts go on while a step trains, and neither half takes the other down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

import art
from art.checkpoints import checkpoints_dir, list_steps
from art.errors import CheckpointError, TrainerDiedError
from art.local import LocalBackend
from tests.integration.conftest import KV_CACHE_BYTES, TinyModel
from tests.support.heartbeat import as_light_as_a_script, beat

pytestmark = pytest.mark.integration

LONGEST_PAUSE_S = 0.1


def make_model(tiny: TinyModel, name: str, **serving: Any) -> art.TrainableModel[Any, Any]:
    return art.TrainableModel(
        name=name,
        project="dedicated",
        base_model=str(tiny.base),
        _internal_config={
            "trainer_gpu_ids": [0],
            "inference_gpu_ids": [1],
            "engine_args": {"max_model_len": 1024, "kv_cache_memory_bytes": KV_CACHE_BYTES, "max_loras": 2},
            "init_args": {"max_seq_length": 1024},
            "serving": serving,  # type: ignore[typeddict-item]
        },
    )


async def rollout(client: AsyncOpenAI, name: str, number: int) -> art.Trajectory:
    question: art.types.Message = {"role": "user", "content": "say the word"}
    answer = await client.chat.completions.create(model=name, messages=[question], max_tokens=12, temperature=1.0)
    return art.Trajectory(messages_and_choices=[question, answer.choices[0]], reward=float(number % 2))


async def gather(model: art.TrainableModel[Any, Any], client: AsyncOpenAI) -> list[art.TrajectoryGroup]:
    name = model.get_inference_name()
    group = art.TrajectoryGroup(rollout(client, name, number) for number in range(6))
    return await art.gather_trajectory_groups([group], pbar_desc=None)


@contextlib.asynccontextmanager
async def heartbeat() -> AsyncIterator[list[float]]:
    """Measure how late a task on the caller's loop runs that only wants to run every few milliseconds."""
    pauses: list[float] = []

    task = asyncio.create_task(beat(pauses))
    try:
        with as_light_as_a_script():
            yield pauses
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def no_room(pid: int) -> Iterator[None]:
    """Have a process fail to write more than the first part of an adapter."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def trainer_pid(backend: LocalBackend) -> int:
    (hosted,) = backend._services.values()
    return int(hosted.actor._target._parts.worker._proxy.process.pid)


@pytest.mark.asyncio
async def test_rollouts_go_on_while_steps_train_and_a_killed_trainer_loses_nothing(
    tiny: TinyModel, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(LocalBackend(path=str(tmp_path)))
        model = make_model(tiny, "both")
        await model.register(backend)
        client = await stack.enter_async_context(model.openai_client())
        model_dir = tmp_path / "dedicated" / "models" / "both"

        # Rollouts are answered in the middle of a step, here one whose trainer is held; the caller's loop never is.
        await backend.train(model, await gather(model, client), learning_rate=1e-3)  # loads what is loaded once
        groups = await gather(model, client)
        async with heartbeat() as pauses:
            os.kill(trainer_pid(backend), signal.SIGSTOP)
            training = asyncio.create_task(backend.train(model, groups, learning_rate=1e-3))
            answers = [await rollout(client, model.get_inference_name(), number) for number in range(3)]
            assert not training.done()
            os.kill(trainer_pid(backend), signal.SIGCONT)
            result = await training
        assert all(answer.messages() for answer in answers)
        assert max(pauses) < LONGEST_PAUSE_S
        assert (result.step, model.get_inference_name()) == (2, "both@2")
        assert result.metrics["sync/logprob_gap"] < 1e-4

        # The disk is full while the step is saved: the same trainer does it again when there is room.
        groups = await gather(model, client)
        with no_room(trainer_pid(backend)), pytest.raises(CheckpointError, match=r"adapter_model.* cannot be written"):
            await backend.train(model, groups, learning_rate=1e-3)
        assert sorted(path.name for path in checkpoints_dir(model_dir).iterdir()) == ["0000", "0001", "0002"]
        assert model.get_inference_name() == "both@2"
        assert (await rollout(client, "both@2", 0)).messages()

        # The trainer is killed while it saves.
        training = asyncio.create_task(backend.train(model, groups, learning_rate=1e-3))
        while not list(checkpoints_dir(model_dir).glob(".staging-*")) and not training.done():
            await asyncio.sleep(0)
        os.kill(trainer_pid(backend), signal.SIGKILL)
        with pytest.raises(TrainerDiedError, match="killed by SIGKILL"):
            await training
        assert list_steps(model_dir) == [0, 1, 2]
        assert model.get_inference_name() == "both@2"
        groups = await gather(model, client)

        # The next call starts another trainer, which goes on from the newest checkpoint.
        result = await backend.train(model, groups, learning_rate=1e-3)
        assert (result.step, model.get_inference_name()) == (3, "both@3")
        assert not list(checkpoints_dir(model_dir).glob(".staging-*"))
        assert (await rollout(client, model.get_inference_name(), 0)).messages()
