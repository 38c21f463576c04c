"""The shape of a packed batch."""

from __future__ import annotations

from typing import TypedDict

import torch


class PackedTensors(TypedDict):
    """A batch of B rows of S tokens, each row holding several token sequences.

    All are token-aligned: entry [b, s] speaks of token s itself. Token i may attend to token j of its row if j <= i
    and `group_ids[j]` is `group_ids[i]` or `parent_ids[i]`; its position is `input_pos[i]`.

    Attributes:
        tokens: int64; the padding id beyond the end of a row's sequences.
        group_ids: int64; a shared prompt's id for its tokens, otherwise an id of the sequence's own; -1 for padding.
        parent_ids: int64; id of the sequence's prompt; -1 for padding.
        input_pos: int64; position within the sequence, prompt included; 0 for padding.
        assistant_mask: bool; True where the token is trained.
        logprobs: float32; NaN for tokens that nobody sampled.
        advantages: float32; 0 where not trained.
        weights: float32; 0 where not trained, mean 1 over trained tokens.
        pixel_values: For each row the patches of its images, or None.
        image_grid_thw: For each row the grids of its images, or None.
    """

    tokens: torch.Tensor
    group_ids: torch.Tensor
    parent_ids: torch.Tensor
    input_pos: torch.Tensor
    assistant_mask: torch.Tensor
    logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    pixel_values: list[torch.Tensor | None]
    image_grid_thw: list[torch.Tensor | None]


TOKEN_DTYPES: dict[str, torch.dtype] = {
    "tokens": torch.int64,
    "group_ids": torch.int64,
    "parent_ids": torch.int64,
    "input_pos": torch.int64,
    "assistant_mask": torch.bool,
    "logprobs": torch.float32,
    "advantages": torch.float32,
    "weights": torch.float32,
}
IMAGE_DTYPES: dict[str, torch.dtype] = {"pixel_values": torch.float32, "image_grid_thw": torch.int64}
