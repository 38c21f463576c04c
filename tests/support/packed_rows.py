"""Packed batches written by hand: prompts with completions, in one row or each on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from art.preprocessing.packed_tensors import TOKEN_DTYPES, PackedTensors

_PADDING: dict[str, Any] = {
    "tokens": 0,
    "group_ids": -1,
    "parent_ids": -1,
    "input_pos": 0,
    "assistant_mask": False,
    "logprobs": math.nan,
    "advantages": 0.0,
    "weights": 0.0,
}


@dataclass(frozen=True)
class Completion:
    """A trained completion; `logprobs` are the sampler's, NaN where None."""

    tokens: list[int]
    advantage: float = 1.0
    logprobs: list[float] | None = None


@dataclass(frozen=True)
class Group:
    """A prompt with its completions."""

    prompt: list[int]
    completions: list[Completion] = field(default_factory=list)


def pack_row(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Lay groups into one row, each prompt once but for its last token, which begins every completion's segment."""
    row: dict[str, list[Any]] = {key: [] for key in TOKEN_DTYPES}
    next_id = 1
    for group in groups:
        prompt_id, next_id = next_id, next_id + 1
        shared = group.prompt[:-1]
        _extend(row, shared, prompt_id, prompt_id, 0)
        for completion in group.completions:
            _extend(row, group.prompt[-1:], next_id, prompt_id, len(shared))
            _extend(row, completion.tokens, next_id, prompt_id, len(shared) + 1, completion)
            next_id += 1
    return row


def unpack_rows(groups: Sequence[Group]) -> list[dict[str, list[Any]]]:
    """Give every completion a row of its own, with the whole prompt."""
    return [pack_row([Group(group.prompt, [completion])]) for group in groups for completion in group.completions]


def make_batch(rows: Sequence[dict[str, list[Any]]], padding: int = 3) -> PackedTensors:
    """Make a batch of rows, padded to the longest and a few tokens more."""
    length = max(len(row["tokens"]) for row in rows) + padding
    batch: Any = {
        key: torch.tensor([row[key] + [_PADDING[key]] * (length - len(row[key])) for row in rows], dtype=dtype)
        for key, dtype in TOKEN_DTYPES.items()
    }
    batch["pixel_values"] = [None] * len(rows)
    batch["image_grid_thw"] = [None] * len(rows)
    return batch  # type: ignore[no-any-return]


def _extend(
    row: dict[str, list[Any]],
    tokens: list[int],
    group_id: int,
    parent_id: int,
    start: int,
    completion: Completion | None = None,
) -> None:
    count = len(tokens)
    is_trained = completion is not None
    row["tokens"] += tokens
    row["group_ids"] += [group_id] * count
    row["parent_ids"] += [parent_id] * count
    row["input_pos"] += list(range(start, start + count))
    row["assistant_mask"] += [is_trained] * count
    row["advantages"] += [completion.advantage if completion else 0.0] * count
    row["weights"] += [1.0 if is_trained else 0.0] * count
    row["logprobs"] += (completion.logprobs if completion and completion.logprobs else None) or [math.nan] * count
