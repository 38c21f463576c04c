"""What the trainer's worker refuses before anything is trained."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import art
from art.dev.get_model_config import get_model_config
from art.dev.settings import TrainSettings
from art.errors import TokenizationError
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
