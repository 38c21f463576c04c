"""Attention by blocks on the GPU: the numbers of the dense mask, forward and backward, without its memory."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from art.dev.settings import TrainSettings
from art.loss import loss_fn
from art.unsloth.self_check import check_model
from tests.support.lora_models import load_model
from tests.support.packed_rows import Completion, Group, make_batch, pack_row
from tests.support.tiny_model import make_tiny_model

logger = logging.getLogger(__name__)

GROUPS = [
    Group(list(range(20, 170)), [Completion([40 + n % 200 for n in range(90)], 1.0), Completion([77] * 33, -0.5)]),
    Group(list(range(60, 100)), [Completion([90 + n % 100 for n in range(160)], 0.7)]),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = load_model(make_tiny_model(tmp_path_factory.mktemp("tiny")), loader="transformers")
    assert model.mask_form == "blocks"
    return model


def score(model: Any, form: str) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return logprobs, gradient and loss of a packed row."""
    model.mask_form = form
    model.peft_model.zero_grad(set_to_none=True)
    batch: Any = make_batch([pack_row(GROUPS)])
    batch |= {key: value.to("cuda") for key, value in batch.items() if isinstance(value, torch.Tensor)}
    logprobs, entropies = model.score_row(batch, 64)
    loss = loss_fn(batch, logprobs, None, entropies, TrainSettings(), "sum").policy_loss
    loss.backward()  # type: ignore[no-untyped-call]
    gradient = torch.cat([value.grad.flatten() for value in model.adapter_parameters().values()])
    return logprobs.detach(), gradient, loss.item()


def test_loss_and_gradient_are_those_of_the_dense_mask(model: Any) -> None:
    dense, dense_gradient, dense_loss = score(model, "dense")
    blocks, gradient, loss = score(model, "blocks")
    torch.testing.assert_close(blocks, dense, atol=2e-4, rtol=0)
    assert loss == pytest.approx(dense_loss, abs=1e-3)
    difference = (gradient - dense_gradient).norm() / dense_gradient.norm()
    logger.info("difference of the gradients: %.2g", difference)
    assert difference < 1e-3


def test_a_model_on_a_gpu_attends_by_blocks(model: Any) -> None:
    model.mask_form = "blocks"
    check_model(model, [54, 280, 266, 80, 85, 89, 262, 223, 70])
    assert model.mask_form == "blocks"
    assert model.activation_bytes_per_token > 0


def test_no_mask_of_the_whole_row_is_made() -> None:
    from types import SimpleNamespace

    from art.unsloth.attention_mask import build_attention

    tokens = 65_536
    group_ids = torch.ones(1, tokens, dtype=torch.int64, device="cuda")
    positions = torch.arange(tokens, device="cuda").unsqueeze(0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    config = SimpleNamespace(layer_types=["full_attention"])
    build_attention(config, group_ids, group_ids, positions, torch.bfloat16, "blocks")
    peak = torch.cuda.max_memory_allocated() - before
    logger.info("peak: %.0f MiB", peak / 2**20)
    assert peak < tokens * tokens / 4  # one bit for each pair would be an eighth of a byte
