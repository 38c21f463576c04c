"""Attention by blocks says and computes the same as with a dense mask. On a CPU there is no backward pass of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from art.unsloth.attention_mask import build_attention
from art.unsloth.block_attention import BLOCK_TOKENS, attend, use_in_transformers, use_in_unsloth
from art.unsloth.self_check import check_model
from tests.support.lora_models import load_model
from tests.support.packed_rows import Completion, Group, make_batch, pack_row

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")

# Segments that end neither where blocks do nor before them; the second prompt has a completion of over a block.
ROW = pack_row(
    [
        Group(list(range(150)), [Completion([7] * 40), Completion([8] * 70)]),
        Group(list(range(20)), [Completion([9] * 170), Completion([5])]),
    ]
)
BATCH = make_batch([ROW, pack_row([Group(list(range(300)), [Completion([3] * 120)])])], padding=60)
CONFIGS = {
    "full_attention": SimpleNamespace(layer_types=["full_attention"]),
    "sliding_attention": SimpleNamespace(layer_types=["sliding_attention"], sliding_window=100),
    "chunked_attention": SimpleNamespace(layer_types=["chunked_attention"], attention_chunk_size=64),
}


def masks(kind: str) -> tuple[torch.Tensor, Any]:
    """Return the visible pairs (B, S, S), and the mask of blocks."""
    parts = BATCH["group_ids"], BATCH["parent_ids"], BATCH["input_pos"], torch.float32
    dense = build_attention(CONFIGS[kind], *parts)
    assert isinstance(dense, torch.Tensor)
    return dense[:, 0] == 0, build_attention(CONFIGS[kind], *parts, "blocks")


@pytest.mark.parametrize("kind", CONFIGS)
def test_blocks_are_those_in_which_something_is_visible(kind: str) -> None:
    visible, blocks = masks(kind)
    num_tokens = visible.shape[1]
    assert num_tokens % BLOCK_TOKENS
    padding = -num_tokens % BLOCK_TOKENS
    padded = torch.nn.functional.pad(visible, (0, padding, 0, padding))
    num_blocks = padded.shape[1] // BLOCK_TOKENS
    counts = padded.view(2, num_blocks, BLOCK_TOKENS, num_blocks, BLOCK_TOKENS).sum(dim=(2, 4))
    expected_full = counts == BLOCK_TOKENS**2
    assert expected_full.any() == (kind == "full_attention")
    found = torch.zeros_like(counts)
    found_full = torch.zeros_like(counts, dtype=torch.bool)
    for row in range(2):
        for query in range(num_blocks):
            partial = blocks.kv_indices[row, 0, query, : blocks.kv_num_blocks[row, 0, query]]
            full = blocks.full_kv_indices[row, 0, query, : blocks.full_kv_num_blocks[row, 0, query]]
            found[row, query, partial] += 1
            found[row, query, full] += 1
            found_full[row, query, full] = True
    assert torch.equal(found, (counts > 0).long())
    assert torch.equal(found_full, expected_full)


@pytest.mark.parametrize("kind", CONFIGS)
def test_attention_by_blocks_is_attention_with_the_dense_mask(kind: str) -> None:
    visible, blocks = masks(kind)
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, 6, visible.shape[1], 32, generator=generator)
    key, value = (torch.randn(2, 2, visible.shape[1], 32, generator=generator) for _ in range(2))
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=visible.unsqueeze(1), enable_gqa=True, scale=0.3
    )
    torch.testing.assert_close(attend(query, key, value, blocks, 0.3), expected, atol=1e-5, rtol=0)


def test_a_transformers_model_scores_the_same_either_way(tiny_qwen3: Path) -> None:
    model = load_model(tiny_qwen3)
    with torch.no_grad():
        expected = model.score_row(BATCH, 64)[0]
        use_in_transformers(model.causal_lm)
        assert torch.equal(model.score_row(BATCH, 64)[0], expected)
        model.mask_form = "blocks"
        found = model.score_row(BATCH, 64)[0]
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_model_that_cannot_attend_by_blocks_is_given_dense_masks(
    tiny_qwen3: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(tiny_qwen3)
    model.mask_form = "blocks"  # but its layers still take dense masks only
    check_model(model, [54, 280, 266, 80, 85, 89, 262, 223, 70])
    assert model.mask_form == "dense"
    assert "attention by blocks does not work with Qwen3ForCausalLM" in caplog.text


def test_attention_that_goes_another_way_is_not_replaced() -> None:
    from art.errors import IncompatibleDependencyError

    with pytest.raises(IncompatibleDependencyError, match="run_attention"):
        use_in_unsloth(torch.nn.Linear(2, 2))
