"""What the trainer's worker refuses, before anything is trained and before anything is saved."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import art
from art.checkpoints import checkpoints_dir, list_steps
from art.dev.get_model_config import get_model_config
from art.dev.settings import TrainSettings
from art.errors import NonFiniteLossError, TokenizationError
from art.unsloth.worker import TrainerWorker
from tests.support.tokenizers import sampled_choice


def groups_with(token: int) -> list[art.TrajectoryGroup]:
    """Make a group in which one answer holds a token."""
    question: art.types.Message = {"role": "user", "content": "say yes"}
    answers = [sampled_choice([17, 2], "a"), sampled_choice([17, token, 2], "b")]
    return [
        art.TrajectoryGroup(
            art.Trajectory(messages_and_choices=[question, answer], reward=float(number))
            for number, answer in enumerate(answers)
        )
    ]


def test_answers_of_another_model_are_refused_before_training(tiny_qwen3: Path, tmp_path: Path) -> None:
    config = get_model_config(str(tiny_qwen3), str(tmp_path / "model"), None, has_cuda=False)
    vocabulary = int(json.loads((tiny_qwen3 / "config.json").read_text())["vocab_size"])
    worker = TrainerWorker(str(tiny_qwen3), config, str(tmp_path / "model"), save_optimizer=False)

    async def scenario() -> None:
        await worker.load()
        try:
            known = await worker.prepare(groups_with(vocabulary - 1), TrainSettings())
            assert known.skip_reason is None
            with pytest.raises(TokenizationError, match=rf"trajectory 1 of group 0 .* only {vocabulary} tokens"):
                await worker.prepare(groups_with(vocabulary), TrainSettings())
        finally:
            await worker.close()

    asyncio.run(scenario())


def test_weights_that_training_broke_are_not_saved_and_the_next_step_works(tiny_qwen3: Path, tmp_path: Path) -> None:
    model_dir = tmp_path / "model"
    config = get_model_config(str(tiny_qwen3), str(model_dir), None, has_cuda=False)
    worker = TrainerWorker(str(tiny_qwen3), config, str(model_dir), save_optimizer=False)

    async def scenario() -> None:
        await worker.load()
        try:
            packed = (await worker.prepare(groups_with(5), TrainSettings())).disk_packed_tensors
            assert packed is not None
            with pytest.raises(NonFiniteLossError, match=r"step 1 is not saved: .* no finite numbers"):
                await worker.train_step(packed, TrainSettings(learning_rate=1e30), 1)
            assert list_steps(model_dir) == [0]
            assert list(checkpoints_dir(model_dir).glob(".*")) == []
            outcome = await worker.train_step(packed, TrainSettings(learning_rate=1e-3), 1)
            assert outcome.metrics[0]["loss/grad_norm"] > 0
            assert list_steps(model_dir) == [0, 1]
        finally:
            await worker.close()

    asyncio.run(scenario())
