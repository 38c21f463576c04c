"""Who may attend to whom in a packed row, in the form that the model takes.

`build_attention` is the seam: another form (a block mask for FlexAttention, say) is made there and nowhere else.
"""

from __future__ import annotations

from typing import Any

import torch

from art.errors import ConfigurationError

# What a model takes as `attention_mask`: one mask for all its layers, or one for each kind of layer.
AttentionMask = torch.Tensor | dict[str, torch.Tensor]


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
    text_config: Any, group_ids: torch.Tensor, parent_ids: torch.Tensor, input_pos: torch.Tensor, dtype: torch.dtype
) -> AttentionMask:
    """Build the mask of packed rows for a model.

    A sliding window counts positions within a token's own conversation, not places in the row.

    Args:
        text_config: Configuration of the model's language part.
        group_ids: (B, S)
        parent_ids: (B, S)
        input_pos: (B, S)
        dtype: Type of the model's hidden states.

    Raises:
        ConfigurationError: The model has layers that mix tokens in a way that no mask can restrict.
    """
    visible = visible_tokens(group_ids, parent_ids)
    kinds = _layer_kinds(text_config)
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
    raise ConfigurationError(
        f"{getattr(text_config, 'model_type', 'this model')} has layers of the kind {kind!r}, which mix all tokens of "
        "a packed row; only models whose layers all use attention can be trained on packed rows"
    )
