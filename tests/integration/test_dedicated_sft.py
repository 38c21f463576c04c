"""Supervised fine-tuning in dedicated mode, from an adapter that is given as the base model."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

import art
from art.local import LocalBackend
from art.unsloth.trainer import LoraTrainer
from tests.integration.conftest import TinyModel
from tests.support.local_run import fixed_logprobs, listed_names, make_model, train_step

pytestmark = pytest.mark.integration

SAME_NATS = 1e-4


def example() -> art.Trajectory:
    messages: Any = [{"role": "user", "content": "which word?"}, {"role": "assistant", "content": "maybe"}]
    return art.Trajectory(messages_and_choices=messages, reward=0.0)


@pytest.mark.asyncio
async def test_an_adapter_is_trained_further_and_each_step_is_served(tiny: TinyModel, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(LocalBackend(path=str(tmp_path)))
        model = make_model(tiny.adapters[1], trainer_gpu_ids=[0], inference_gpu_ids=[1])
        await model.register(backend)
        client = await stack.enter_async_context(model.openai_client())
        assert await listed_names(model) >= {"tiny@0", str(tiny.base)}

        async def ask(name: str) -> str:
            messages: Any = [{"role": "user", "content": "which word?"}]
            answer = await client.chat.completions.create(model=name, messages=messages, max_tokens=8, temperature=0)
            return answer.choices[0].message.content or ""

        assert await ask("tiny@0") != await ask(str(tiny.base))  # step 0 is the adapter, not a fresh one
        seen = {"tiny@0": await fixed_logprobs(model)}
        for number in range(3):
            if number == 1:
                await train_step(backend, model)
            else:
                await model.train_sft([example()] * 16, art.TrainSFTConfig(learning_rate=1e-2))
            assert model.get_inference_name() == model.inference_model_name == f"tiny@{number + 1}"
            seen[model.get_inference_name()] = await fixed_logprobs(model)
            assert await ask(model.get_inference_name()) == "maybe" or number == 1

        assert list(seen) == ["tiny@0", "tiny@1", "tiny@2", "tiny@3"]
        values = list(seen.values())
        for before, after in itertools.pairwise(values):
            assert after != pytest.approx(before, abs=10 * SAME_NATS)
        for name, logprobs in seen.items():
            assert await fixed_logprobs(model, name) == pytest.approx(logprobs, abs=SAME_NATS)
        assert list((tmp_path / "project" / "models" / "tiny" / "tensors").glob("sft-*")) == []


def test_step_0_of_a_warm_start_scores_as_the_adapter_did(tiny: TinyModel, tmp_path: Path) -> None:
    from art.dev.get_model_config import get_model_config
    from art.probe import AdapterProbe
    from art.unsloth.warm_start import start_from_adapter

    base_model, config = start_from_adapter(str(tiny.adapters[2]), {})
    completed = get_model_config(base_model, str(tmp_path), config, has_cuda=False)
    trainer = LoraTrainer(base_model=base_model, config=completed, output_dir=tmp_path)
    trainer.load()
    expected = AdapterProbe.read(tiny.adapters[2])
    assert expected is not None
    assert trainer.probe().logprobs == pytest.approx(expected.logprobs, abs=SAME_NATS)
    assert trainer.probe().logprobs != pytest.approx(expected.base_logprobs, abs=1e-2)
