"""Attention over packed rows by blocks: no mask of length times length is ever made.

FlexAttention computes only those blocks of token pairs in which something is visible, and asks about single pairs only
where a block is visible in part. `attention_mask` says what is visible; here is how that is handed to the kernels, and
how the libraries' models are made to call them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from art.errors import IncompatibleDependencyError

# Tells whether token q of row b may attend to token kv; index tensors of any shapes that broadcast.
Visible = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

BLOCK_TOKENS = 128  # what the kernels take by default
# Shorter rows than a block take another kernel of FlexAttention, which has no backward pass.
SHORTEST_ROW_TOKENS = BLOCK_TOKENS
ATTENTION_NAME = "art_blocks"
# The backward pass works on one key head and block of keys at a time: a few key heads leave most of a GPU idle.
_REPEATS_KEY_HEADS = True
_BLOCK_ROWS_AT_ONCE = 8  # of a row's mask while its blocks are counted: 32 MB for 32,768 tokens


def make_block_mask(is_visible: Visible, num_rows: int, num_tokens: int, device: torch.device) -> BlockMask:
    """Find the blocks that are visible in whole or in part.

    Args:
        is_visible: Who sees whom; also asked by the kernels, with scalars.
        num_rows: Batch size B.
        num_tokens: Length S of the rows.
        device: Where they are.
    """
    num_blocks = -(-num_tokens // BLOCK_TOKENS)
    counts = torch.stack([_count_visible(is_visible, row, num_tokens, num_blocks, device) for row in range(num_rows)])
    is_full = counts == BLOCK_TOKENS * BLOCK_TOKENS
    partial_num, partial_indices = _indices_of((counts > 0) & ~is_full)
    full_num, full_indices = _indices_of(is_full)
    mask: BlockMask = BlockMask.from_kv_blocks(
        partial_num,
        partial_indices,
        full_num,
        full_indices,
        BLOCK_SIZE=BLOCK_TOKENS,
        mask_mod=is_visible,
        seq_lengths=(num_tokens, num_tokens),
    )
    return mask


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: BlockMask, scale: float | None = None
) -> torch.Tensor:
    """Return attention (B, heads, S, D) of queries (B, heads, S, D) to keys and values (B, key heads, S, D).

    Args:
        query: Queries.
        key: Keys; a key head serves as many query heads as there are more of those.
        value: Values.
        mask: From `make_block_mask`.
        scale: Of the scores; None: one over the root of D.
    """
    groups = query.shape[1] // key.shape[1]
    if _REPEATS_KEY_HEADS and groups > 1 and query.is_cuda:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    # Inside a region that is being compiled, the kernel becomes a part of it.
    is_compiled_here = query.is_cuda and not torch.compiler.is_compiling()
    kernel: Any = _compiled_kernel() if is_compiled_here else flex_attention
    attended: torch.Tensor = kernel(
        query,
        key.to(query.dtype),
        value.to(query.dtype),
        block_mask=mask,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended


def use_in_transformers(model: Any) -> None:
    """Make a transformers model attend by blocks wherever it is given a block mask, and as before otherwise.

    Args:
        model: A model that computes attention with torch's `scaled_dot_product_attention`.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION_NAME, _attention_of_transformers)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    model.set_attn_implementation(ATTENTION_NAME)


def use_in_unsloth(attention_layer: Any) -> None:
    """Make Unsloth's fast attention attend by blocks wherever it is given a block mask as `causal_mask`.

    Its forward passes (2026.10.9) hand `causal_mask` down to `run_attention` untouched, and that chooses a kernel;
    here it gets one more choice. Without this, a packed row of S tokens needs a mask of S x S. It can go when Unsloth
    takes a block mask itself. Safe to call twice; whether it works is checked with numbers when a model is loaded, see
    `art.unsloth.self_check`.

    Args:
        attention_layer: One of the model's attention layers.

    Raises:
        IncompatibleDependencyError: The layer's forward pass does not go through `run_attention`.
    """
    forward = inspect.unwrap(type(attention_layer).forward)
    module = inspect.getmodule(forward)
    original = getattr(module, "run_attention", None)
    has_shape = original is not None and {"config", "context", "Q", "K", "V"} <= set(
        inspect.signature(inspect.unwrap(original)).parameters
    )
    if original is None or not has_shape or "causal_mask" not in inspect.signature(forward).parameters:
        raise IncompatibleDependencyError(
            "unsloth",
            found_version=version("unsloth"),
            wanted="2026.10.9",
            missing=f"run_attention(config, context, Q, K, V) and `causal_mask` in {forward.__module__}",
        )
    if getattr(original, "_art_blocks", False):
        return

    @functools.wraps(original)
    def run_attention(config: Any, context: Any, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        if isinstance(context.causal_mask, BlockMask):
            return attend(Q, K, V, context.causal_mask).transpose(1, 2)
        attended: torch.Tensor = original(config=config, context=context, Q=Q, K=K, V=V)
        return attended

    run_attention._art_blocks = True  # type: ignore[attr-defined]
    setattr(module, "run_attention", run_attention)  # noqa: B010 - a module is no place for a typed assignment


def _attention_of_transformers(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    if isinstance(attention_mask, BlockMask):
        return attend(query, key, value, attention_mask, kwargs.get("scaling")).transpose(1, 2).contiguous(), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return attended, None


@functools.cache
def _compiled_kernel() -> Any:
    # With `fullgraph`, what cannot be compiled is an error. Without, torch would quietly compute with all S x S scores.
    return torch.compile(flex_attention, fullgraph=True, dynamic=True)


def _count_visible(
    is_visible: Visible, row: int, num_tokens: int, num_blocks: int, device: torch.device
) -> torch.Tensor:
    """Count the visible pairs in each block of a row's mask, (blocks, blocks)."""
    places = torch.arange(num_blocks * BLOCK_TOKENS, device=device)
    is_inside = places < num_tokens
    inside = places.clamp(max=num_tokens - 1)
    row_index, head = torch.tensor(row, device=device), torch.tensor(0, device=device)
    step = _BLOCK_ROWS_AT_ONCE * BLOCK_TOKENS
    counts = []
    for start in range(0, len(places), step):
        part = slice(start, start + step)
        visible = is_visible(row_index, head, inside[part, None], inside[None, :])
        visible = visible & is_inside[part, None] & is_inside[None, :]
        counts.append(visible.view(-1, BLOCK_TOKENS, num_blocks, BLOCK_TOKENS).sum(dim=(1, 3)))
    return torch.cat(counts)


def _indices_of(is_chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how many blocks are chosen for each block of queries, (B, 1, blocks), and which, those first."""
    order = torch.argsort(is_chosen.int(), dim=-1, descending=True, stable=True)
    return is_chosen.sum(dim=-1).int().unsqueeze(1), order.int().unsqueeze(1)
