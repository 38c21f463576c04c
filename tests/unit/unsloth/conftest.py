"""Tiny models of several architectures, made once, and trainers for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from art.dev.get_model_config import get_model_config
from art.unsloth.trainer import LoraTrainer
from tests.support.tiny_model import make_tiny_model

MakeTrainer = Callable[..., LoraTrainer]


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny-qwen3"))


@pytest.fixture(scope="session")
def tiny_llama(tiny_qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.08,
        tie_word_embeddings=False,
    )
    folder = tmp_path_factory.mktemp("tiny-llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_qwen3).save_pretrained(folder)
    return folder


@pytest.fixture
def make_trainer(tiny_qwen3: Path, tmp_path: Path) -> MakeTrainer:
    def make(output_dir: Path = tmp_path / "model", **sections: dict[str, object]) -> LoraTrainer:
        given = {"trainer_args": {"weight_decay": 0.0}, **sections}
        config = get_model_config(str(tiny_qwen3), str(output_dir), given, has_cuda=False)  # type: ignore[arg-type]
        trainer = LoraTrainer(base_model=str(tiny_qwen3), config=config, output_dir=output_dir)
        trainer.load()
        return trainer

    return make
