"""A trainable model: its configuration, registering, training, checkpoints."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from art import dev
from art.errors import ConfigurationError
from art.model import TrainableModel
from art.trajectories import TrajectoryGroup
from art.types import TrainConfig, TrainSFTConfig
from tests.support.conversations import make_trajectory
from tests.support.fake_backend import FakeBackend, FakeLocalBackend


def trainable(art_path: Path | None = None, **fields: Any) -> TrainableModel[Any, Any]:
    where = {} if art_path is None else {"base_path": str(art_path)}
    keywords: dict[str, Any] = {"name": "agent", "project": "mail", "base_model": "tiny", **where, **fields}
    return TrainableModel(**keywords)


def deprecation_warning() -> Any:
    return pytest.warns(DeprecationWarning, match=r"backend\.train")


def history(art_path: Path) -> list[dict[str, Any]]:
    path = art_path / "mail" / "models" / "agent" / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_internal_config_by_keyword_and_by_assignment() -> None:
    config = dev.InternalModelConfig(engine_args={"enforce_eager": True})
    model = trainable(_internal_config=config)
    assert model._internal_config == config
    assert model.trainable is True
    model._internal_config = dev.InternalModelConfig(rollout_weights_mode="lora")
    assert model.model_dump()["_internal_config"] == {"rollout_weights_mode": "lora"}
    assert model.safe_model_dump()["_internal_config"] == {"rollout_weights_mode": "lora"}
    assert TrainableModel.model_validate(model.model_dump())._internal_config == {"rollout_weights_mode": "lora"}


def test_internal_config_survives_copying() -> None:
    model = trainable(_internal_config={"init_args": {"max_seq_length": 64}})
    shallow = model.model_copy(update={"name": "other"})
    assert shallow._internal_config == {"init_args": {"max_seq_length": 64}}
    deep = copy.deepcopy(model)
    deep._internal_config["init_args"]["max_seq_length"] = 128  # type: ignore[index]
    assert model._internal_config == {"init_args": {"max_seq_length": 64}}


def test_base_model_is_needed_and_unknown_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match="base_model"):
        TrainableModel(name="agent", project="mail")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="internal_config"):
        trainable(internal_config={})


def test_registering_makes_the_model_reachable() -> None:
    model, backend = trainable(), FakeBackend(step=3)
    server: dev.OpenAIServerConfig = {"server_args": {"port": 8123}}
    asyncio.run(model.register(backend, _openai_client_config=server))
    assert backend.calls == [("register", "agent"), ("prepare", server)]
    assert (model.inference_base_url, model.inference_api_key) == ("http://127.0.0.1:8123/v1", "key-1")
    assert model.inference_model_name == "agent@3"
    assert str(model.openai_client().base_url) == "http://127.0.0.1:8123/v1/"
    assert model.litellm_completion_params(step=2)["model"] == "hosted_vllm/agent@2"
    assert asyncio.run(model.get_step()) == 3


def test_step_needs_a_backend() -> None:
    with pytest.raises(ValueError, match="register"):
        asyncio.run(trainable().get_step())


def test_train_logs_averages_at_the_step_after_training(tmp_path: Path) -> None:
    async def run() -> FakeBackend:
        model = trainable()
        backend = FakeBackend(step=6, samples=[{"loss/train": 1.0}, {"loss/train": 2.0}], art_path=str(tmp_path))
        await model.register(backend)
        groups = [TrajectoryGroup([make_trajectory(0.0), make_trajectory(1.0)])]
        with deprecation_warning():
            await model.train(groups, config=TrainConfig(learning_rate=1e-4), _config={"ppo": True}, verbose=True)
        return backend

    backend = asyncio.run(run())
    assert backend.calls[-1] == ("train", (1, TrainConfig(learning_rate=1e-4), {"ppo": True}, True))
    (row,) = history(tmp_path)
    assert row["step"] == row["training_step"] == 7
    assert row["loss/train"] == 1.5
    assert row["train/reward"] == 0.5
    assert 0 <= row["time/step_trainer_s"] < 60
    assert (tmp_path / "mail" / "models" / "agent" / "trajectories" / "train" / "0007.parquet").exists()


def test_train_keeps_the_trainers_own_time(tmp_path: Path) -> None:
    async def run() -> None:
        model = trainable()
        await model.register(FakeBackend(samples=[{"time/step_trainer_s": 12.0}], art_path=str(tmp_path)))
        with deprecation_warning():
            await model.train([])

    asyncio.run(run())
    assert history(tmp_path)[0]["time/step_trainer_s"] == 12.0


def test_train_refuses_bare_trajectories(tmp_path: Path) -> None:
    async def run() -> None:
        model = trainable()
        await model.register(FakeBackend(art_path=str(tmp_path)))
        with deprecation_warning(), pytest.raises(TypeError, match="Trajectory"):
            await model.train([make_trajectory()])  # type: ignore[list-item]

    asyncio.run(run())
    assert history(tmp_path) == []


def test_train_passes_the_backends_error_on_and_logs_nothing(tmp_path: Path) -> None:
    class Broken(FakeBackend):
        async def _get_step(self, model: Any) -> int:
            raise RuntimeError("server gone")

    async def run() -> None:
        model = trainable()
        await model.register(Broken(samples=[{"loss/train": 1.0}], art_path=str(tmp_path)))
        with deprecation_warning(), pytest.raises(RuntimeError, match="server gone"):
            await model.train([TrajectoryGroup([make_trajectory()])])

    asyncio.run(run())
    assert history(tmp_path) == []


def test_train_sft_logs_once_and_only_if_something_was_trained(tmp_path: Path) -> None:
    async def run() -> FakeBackend:
        model = trainable()
        backend = FakeBackend(samples=[{"loss/train": 4.0}, {"loss/train": 2.0}], art_path=str(tmp_path))
        await model.register(backend)
        await model.train_sft(iter([make_trajectory(), make_trajectory()]))
        backend.samples = []
        await model.train_sft([])
        return backend

    backend = asyncio.run(run())
    assert ("train_sft", (2, TrainSFTConfig(), {}, False)) in backend.calls
    (row,) = history(tmp_path)
    assert row["loss/train"] == 3.0
    assert row["step"] == 1
    assert "train/reward" not in row


async def delete_after_logging(tmp_path: Path, rewards: list[tuple[int, float]], **arguments: Any) -> Any:
    model, backend = trainable(), FakeBackend(step=5, art_path=str(tmp_path))
    await model.register(backend)
    for step, reward in rewards:
        await model.log([TrajectoryGroup([make_trajectory(reward)])], step=step)
    await model.delete_checkpoints(**arguments)
    return backend.calls[-1]


def test_newest_and_best_checkpoint_are_kept(tmp_path: Path) -> None:
    rewards = [(1, 0.9), (1, 0.1), (2, 0.7), (3, 0.2)]  # step 1 averages 0.5
    assert asyncio.run(delete_after_logging(tmp_path, rewards)) == ("delete", [2, 5])


def test_of_two_best_checkpoints_the_later_is_kept(tmp_path: Path) -> None:
    assert asyncio.run(delete_after_logging(tmp_path, [(3, 0.5), (1, 0.5)])) == ("delete", [3, 5])


def test_other_metric_decides_if_named(tmp_path: Path) -> None:
    call = asyncio.run(
        delete_after_logging(tmp_path, [(1, 0.1), (2, 0.9)], best_checkpoint_metric="val/exception_rate")
    )
    assert call == ("delete", [2, 5])


def test_more_of_the_newest_and_best_are_kept_if_wanted(tmp_path: Path) -> None:
    from tests.support.tiny_checkpoints import save_checkpoint

    values = [(1, 0.9), (2, 0.8), (3, 0.1), (4, 0.7), (5, 0.2)]

    async def kept(**arguments: int) -> list[int]:
        model, backend = trainable(), FakeBackend(step=5, art_path=str(tmp_path))
        await model.register(backend)
        await model.delete_checkpoints(**arguments)
        steps: list[int] = backend.calls[-1][1]
        return steps

    assert asyncio.run(delete_after_logging(tmp_path, values, keep_best=2)) == ("delete", [1, 2, 5])
    model_dir = next(tmp_path.rglob("history.jsonl")).parent
    for step in (2, 3, 4, 5):  # step 1, the best, was deleted by hand
        save_checkpoint(model_dir, step)
    assert asyncio.run(kept(keep_best=2, keep_recent=1)) == [2, 4, 5]
    assert asyncio.run(kept(keep_best=0, keep_recent=3)) == [3, 4, 5]
    for wrong in ({"keep_recent": 0}, {"keep_best": -1}):
        with pytest.raises(ConfigurationError, match="keep_"):
            asyncio.run(kept(**wrong))


def test_without_the_metric_only_the_newest_is_kept_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(delete_after_logging(tmp_path, [])) == ("delete", [5])
    assert "val/reward" in caplog.text


def test_cost_calculator_can_be_set_and_unset() -> None:
    model = trainable()
    assert model.cost_calculator(1, 2, "train") == {}
    model.set_cost_calculator(lambda prompt, completion, context: {f"costs/{context}/x": 1.0})
    assert model.cost_calculator(1, 2, "train") == {"costs/train/x": 1.0}
    assert model.model_copy().cost_calculator(1, 2, "eval") == {"costs/eval/x": 1.0}
    model.set_cost_calculator(None)
    assert model.cost_calculator(1, 2, "train") == {}


def test_local_hooks_are_optional(tmp_path: Path) -> None:
    async def run() -> None:
        model = trainable()
        await model.register(FakeLocalBackend(art_path=str(tmp_path)))
        await model.log(metrics={"x": 1.0}, split="train", step=1)

    asyncio.run(run())
    (row,) = history(tmp_path)
    assert "time/step_wall_s" in row
    assert "costs/gpu" not in row
