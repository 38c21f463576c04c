"""Who may attend to whom in a packed row, in the form that the model takes.

There are two forms. "dense" is a number for each pair of tokens, which any model takes, but which grows with the square
of a row's length. "blocks" is what `block_attention` computes with; where it works, rows are as long as memory allows.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.nn.attention.flex_attention import BlockMask

from art.errors import ConfigurationError
from art.unsloth.block_attention import Visible, make_block_mask

MaskForm = Literal["dense", "blocks"]
# What a model takes as its mask: one for all its layers, or one for each kind of layer.
AttentionMask = torch.Tensor | BlockMask | dict[str, torch.Tensor] | dict[str, BlockMask]


def visible_tokens(group_ids: torch.Tensor, parent_ids: torch.Tensor) -> torch.Tensor:
    """Return a mask (B, S, S), True where token i may attend to token j.

    That is j ≤ i in the same group, or in the group that is i's parent: a completion sees itself and its shared
    prompt, not its siblings. Every token sees itself, so no row of the mask is empty.

    Args:
        group_ids: (B, S)
        parent_ids: (B, S)
    """
    keys = group_ids.unsqueeze(1)
    visible = group_ids.unsqueeze(2) == keys
    visible |= parent_ids.unsqueeze(2) == keys
    return visible.tril_()


def attention_bias(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Turn a mask (B, S, S) into what is added to attention scores, 0 or -inf, of shape (B, 1, S, S)."""
    bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return bias.masked_fill_(~visible, float("-inf")).unsqueeze(1)


def build_attention(
    text_config: Any,
    group_ids: torch.Tensor,
    parent_ids: torch.Tensor,
    input_pos: torch.Tensor,
    dtype: torch.dtype,
    form: MaskForm = "dense",
) -> AttentionMask:
    """Build the mask of packed rows for a model.

    A sliding window counts positions within a token's own conversation, not places in the row.

    Args:
        text_config: Configuration of the model's language part.
        group_ids: (B, S)
        parent_ids: (B, S)
        input_pos: (B, S)
        dtype: Type of the model's hidden states.
        form: See above.

    Raises:
        ConfigurationError: The model has layers that mix tokens in a way that no mask can restrict.
    """
    kinds = _layer_kinds(text_config)
    if form == "blocks":
        num_rows, num_tokens = group_ids.shape
        blocks = {
            kind: make_block_mask(
                _visible_pairs(group_ids, parent_ids, input_pos, kind, text_config),
                num_rows,
                num_tokens,
                group_ids.device,
            )
            for kind in kinds
        }
        return blocks if len(blocks) > 1 else next(iter(blocks.values()))
    visible = visible_tokens(group_ids, parent_ids)
    masks = {kind: attention_bias(_restrict(visible, input_pos, kind, text_config), dtype) for kind in kinds}
    return masks if len(masks) > 1 else next(iter(masks.values()))


def _layer_kinds(text_config: Any) -> list[str]:
    layer_types = getattr(text_config, "layer_types", None)
    if layer_types:
        return sorted(set(layer_types))
    return ["sliding_attention" if getattr(text_config, "sliding_window", None) else "full_attention"]


def _restrict(visible: torch.Tensor, input_pos: torch.Tensor, kind: str, text_config: Any) -> torch.Tensor:
    if kind == "full_attention":
        return visible
    queries, keys = input_pos.unsqueeze(2), input_pos.unsqueeze(1)
    if kind == "sliding_attention":
        return visible & (queries - keys < int(text_config.sliding_window))
    if kind == "chunked_attention":
        size = int(text_config.attention_chunk_size)
        return visible & (queries // size == keys // size)
    raise _unknown_kind(kind, text_config)


def _visible_pairs(
    group_ids: torch.Tensor, parent_ids: torch.Tensor, input_pos: torch.Tensor, kind: str, text_config: Any
) -> Visible:
    """Say the same as `visible_tokens` and `_restrict` of single pairs of tokens."""
    # Ids are 64 bits wide; the kernels read them for each pair, so here they are counted through from 0.
    labels = torch.unique(torch.stack([group_ids, parent_ids]), return_inverse=True)[1].int()
    groups, parents, positions = labels[0].contiguous(), labels[1].contiguous(), input_pos.int()

    def in_sight(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        group = groups[row, key]
        visible: torch.Tensor = (query >= key) & ((groups[row, query] == group) | (parents[row, query] == group))
        return visible

    if kind == "full_attention":
        return in_sight
    if kind == "sliding_attention":
        window = int(text_config.sliding_window)

        def in_window(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return in_sight(row, head, query, key) & (positions[row, query] - positions[row, key] < window)

        return in_window
    if kind == "chunked_attention":
        chunks = positions // int(text_config.attention_chunk_size)

        def in_chunk(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return in_sight(row, head, query, key) & (chunks[row, query] == chunks[row, key])

        return in_chunk
    raise _unknown_kind(kind, text_config)


def _unknown_kind(kind: str, text_config: Any) -> ConfigurationError:
    return ConfigurationError(
        f"{getattr(text_config, 'model_type', 'this model')} has layers of the kind {kind!r}, which mix all tokens of "
        "a packed row; only models whose layers all use attention can be trained on packed rows"
    )
