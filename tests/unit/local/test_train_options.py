"""The keywords of `LocalBackend.train`, in the spellings of 0.5.17 and 0.5.18, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import art
from art import dev
from art.local import LocalBackend
from art.types import LocalTrainResult, TrainConfig
from tests.support.conversations import make_trajectory


class Recorder(LocalBackend):
    """Trains nothing, and keeps what it was told."""

    config: TrainConfig
    options: dev.TrainConfig

    async def _train_model(
        self,
        model: Any,
        trajectory_groups: list[art.TrajectoryGroup],
        config: TrainConfig,
        dev_config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        self.config, self.options = config, dev_config
        folder = self._model_dir(model) / "checkpoints" / "0001"
        folder.mkdir(parents=True, exist_ok=True)
        yield {"loss/train": 1.0, "data/step_num_gradient_steps": 2.0}
        yield {"loss/train": 3.0, "data/step_num_gradient_steps": 2.0}

    async def _get_step(self, model: Any) -> int:
        return 1


@pytest.fixture
def backend(tmp_path: Path) -> Recorder:
    return Recorder(path=str(tmp_path))


def train(backend: LocalBackend, **options: Any) -> LocalTrainResult:
    model: Any = art.TrainableModel(name="m", project="p", base_model="b")
    return asyncio.run(backend.train(model, [art.TrajectoryGroup([make_trajectory()])], **options))


def test_defaults_are_those_of_the_options(backend: Recorder) -> None:
    train(backend)

    assert backend.config == TrainConfig()
    assert backend.options == {
        "advantage_balance": 0.0,
        "allow_training_without_logprobs": False,
        "importance_sampling_level": "token",
        "kl_penalty_coef": 0.0,
        "logprob_calculation_chunk_size": 1024,
        "mask_prob_ratio": False,
        "num_trajectories_learning_rate_multiplier_power": 0.0,
        "plot_tensors": False,
        "ppo": False,
        "precalculate_logprobs": False,
        "scale_rewards": True,
    }


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ({"ppo": True}, "ppo", True),
        ({"loss_fn": "ppo"}, "ppo", True),
        ({"loss_fn": "ppo", "ppo": True}, "ppo", True),
        ({"loss_fn": "cispo"}, "ppo", False),
        ({"normalize_advantages": False}, "scale_rewards", False),
        ({"scale_rewards": False}, "scale_rewards", False),
        ({"packed_sequence_length": 4096}, "packed_sequence_length", 4096),
        ({"loss_fn_config": None, "adam_params": None}, "ppo", False),
        ({"epsilon_high": 0.3}, "epsilon_high", 0.3),
        ({"kl_ref_adapter_path": "there", "kl_penalty_reference_step": 3}, "kl_ref_adapter_path", "there"),
    ],
)
def test_either_spelling_reaches_the_options(backend: Recorder, options: Any, key: str, value: object) -> None:
    train(backend, **options)

    assert dict(backend.options)[key] == value


def test_reference_step_becomes_its_checkpoint(backend: Recorder, tmp_path: Path) -> None:
    train(backend, kl_penalty_reference_step=3, kl_penalty_coef=0.1)

    assert backend.options["kl_ref_adapter_path"] == str(tmp_path / "p" / "models" / "m" / "checkpoints" / "0003")
    assert (backend.options["kl_penalty_coef"], backend.config.kl_penalty_coef) == (0.1, 0.1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"loss_fn": "cispo", "ppo": True}, "contradicts"),
        ({"loss_fn": "grpo"}, "'cispo' or 'ppo'"),
        ({"loss_fn_config": {}}, "loss_fn_config"),
        ({"adam_params": object()}, "adam_params"),
        ({"kl_penalty_reference_step": "latest"}, "kl_penalty_reference_step is 'latest': it must be an integer"),
        ({"kl_penalty_reference_step": -1}, "kl_penalty_reference_step is -1: it must be an integer, at least 0"),
    ],
)
def test_contradictions_and_what_other_backends_have_are_refused(backend: Recorder, options: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        train(backend, **options)


def test_result_has_step_averages_and_checkpoint(backend: Recorder, tmp_path: Path) -> None:
    result = train(backend)

    assert result.step == 1
    assert result.checkpoint_path == str(tmp_path / "p" / "models" / "m" / "checkpoints" / "0001")
    assert (result.metrics["loss/train"], result.metrics["data/step_num_gradient_steps"]) == (2.0, 2.0)
    assert 0 <= result.metrics["time/step_trainer_s"] < 60


def test_unwanted_checkpoint_is_only_left_out_of_the_result(backend: Recorder) -> None:
    assert train(backend, save_checkpoint=False).checkpoint_path is None
