"""A pipeline over `LocalBackend` in dedicated mode: real trainer, real server, which is killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import art
from art.checkpoints import list_steps
from art.errors import LocalServingUnavailableError
from art.local import LocalBackend
from art.pipeline_trainer import PipelineTrainer, keep_recent_and_top, make_group_rollout_fn
from art.trajectories import TrajectoryGroup
from art.utils.trajectory_logging import read_trajectory_groups_parquet
from tests.integration.conftest import KV_CACHE_BYTES, TinyModel

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

Model = art.TrainableModel[Any, Any]
SCENARIOS = [{"question": f"say the word, number {number}", "number": number} for number in range(1000)]


def make_model(tiny: TinyModel, name: str, **serving: Any) -> Model:
    return art.TrainableModel(
        name=name,
        project="pipeline",
        base_model=str(tiny.base),
        report_metrics=[],
        _internal_config={
            "trainer_gpu_ids": [0],
            "inference_gpu_ids": [1],
            "engine_args": {"max_model_len": 1024, "kv_cache_memory_bytes": KV_CACHE_BYTES, "max_loras": 2},
            "init_args": {"max_seq_length": 1024},
            "serving": serving,
        },
    )


def server_pid(backend: LocalBackend) -> int:
    (hosted,) = backend._services.values()
    return int(hosted.actor._target._parts.runtime.process.pid)


def make_trainer(model: Model, backend: LocalBackend, **settings: Any) -> PipelineTrainer[Any, Any]:
    turns = itertools.count()

    async def rollout(model: Model, scenario: dict[str, Any], config: Any) -> art.Trajectory:
        question: art.types.Message = {"role": "user", "content": scenario["question"]}
        answer = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[question], max_tokens=12, temperature=1.0
        )
        return art.Trajectory(messages_and_choices=[question, answer.choices[0]], reward=float(next(turns) % 2))

    async def evaluate(model: Model, step: int, config: Any) -> list[art.Trajectory | TrajectoryGroup]:
        assert model.get_inference_name() == f"{model.name}@{step}"
        return [await rollout(model, SCENARIOS[0], config)]

    return PipelineTrainer(
        model,
        backend,
        make_group_rollout_fn(rollout, n=4),
        SCENARIOS,
        None,
        **{
            "eval_fn": evaluate,
            "num_rollout_workers": 3,
            "min_batch_size": 2,
            "max_batch_size": 2,
            "max_steps_off_policy": 2,
            "learning_rate": 1e-3,
            "eval_every_n_steps": 2,
            "stall_timeout_s": 200.0,
            **settings,
        },
    )


def trained_numbers(model_dir: Path, step: int) -> list[int]:
    """Return which scenarios a step was trained on, as its log says."""
    path = model_dir / "trajectories" / "train" / f"{step:04d}.parquet"
    groups = read_trajectory_groups_parquet(path) if path.exists() else []
    return [int(str(group.trajectories[0].messages()[0]["content"]).rpartition(" ")[2]) for group in groups]


async def kill_at(trainer: PipelineTrainer[Any, Any], backend: LocalBackend, step: int) -> None:
    """Kill the server once a step is served."""
    while trainer.state.policy_version < step:
        await asyncio.sleep(0.01)
    os.kill(server_pid(backend), signal.SIGKILL)


async def test_a_killed_server_is_waited_for_and_all_steps_are_done(
    tiny: TinyModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with LocalBackend(path=str(tmp_path)) as backend:
        model = make_model(tiny, "recovers")
        await model.register(backend)
        with pytest.raises(ValueError, match="loss_fn_config is not supported"):
            await make_trainer(model, backend, loss_fn_config={"a": 1}).train()
        trainer = make_trainer(
            model, backend, max_steps=6, checkpoint_retention_strategy=keep_recent_and_top(recent=1, top=0)
        )
        killer = asyncio.create_task(kill_at(trainer, backend, 2))
        async with model.openai_client():
            await trainer.train()
        await killer
        assert trainer.state.policy_version == 6
        assert model.get_inference_name() == "recovers@6"
        assert trainer.state.completed_eval_steps == {0, 2, 4, 6}
        assert "server gone, restarting" in caplog.text
        model_dir = Path(model._get_output_dir())
        assert 6 in list_steps(model_dir)
        assert len(list_steps(model_dir)) < 7  # the strategy had some deleted
        for step in range(1, 7):
            for group in read_trajectory_groups_parquet(model_dir / "trajectories" / "train" / f"{step:04d}.parquet"):
                for trajectory in group:
                    version = trajectory.initial_policy_version
                    assert version is not None
                    assert step - 1 - 2 <= version <= step - 1
                    assert trajectory.metadata["adapter_names"] == f"recovers@{version}"


async def test_a_server_that_is_given_up_ends_the_run_with_its_diagnosis_and_a_new_run_goes_on(
    tiny: TinyModel, tmp_path: Path
) -> None:
    async with LocalBackend(path=str(tmp_path)) as backend:
        model = make_model(tiny, "given-up", inference_restarts=0)
        await model.register(backend)
        trainer = make_trainer(model, backend, max_steps=50)
        killer = asyncio.create_task(kill_at(trainer, backend, 2))
        async with model.openai_client():
            with pytest.raises(LocalServingUnavailableError, match="killed by SIGKILL") as caught:
                await trainer.train()
        await killer
        assert caught.value.facts["exit_code"] == -signal.SIGKILL
        assert {"url", "pid", "log_path", "log_tail"} <= set(caught.value.facts)
        assert re.search("inference_restarts.*=0", str(caught.value))
        # A step that was being trained is saved by now, or never will be; the state tells which.
        progress = (model.read_state() or {})["_pipeline_trainer"]
        newest = await model.get_step()
        assert (progress["training_step"], progress["batch"]) == (newest, None)
        assert newest >= 2
        assert len(progress["unfinished_offsets"]) >= 2

        await model.register(backend)
        again = make_trainer(model, backend, max_steps=2)
        async with model.openai_client():
            await again.train()
        assert again.state.policy_version == newest + 2
        assert model.get_inference_name() == f"given-up@{newest + 2}"
        left = (model.read_state() or {})["_pipeline_trainer"]["unfinished_offsets"]
        model_dir = Path(model._get_output_dir())
        assert list_steps(model_dir) == list(range(newest + 3))
        before, after = (
            [number for step in steps for number in trained_numbers(model_dir, step)]
            for steps in (range(1, newest + 1), range(newest + 1, newest + 3))
        )
        assert len({*before, *after}) == len(before) + len(after)
        assert len(before) >= 2 * (newest - 1)  # the row of a step that was cut off is absent
        assert len(after) == 4
        assert not set(after) & set(left)
        assert set(after) & set(progress["unfinished_offsets"])  # they came first
