"""Tokenized results laid into rows, with shared prompts stored once, and their advantages brought to one scale."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from art.preprocessing.disk import DiskPackedTensors, packed_tensors_from_dir, packed_tensors_to_dir
from art.preprocessing.packed_tensors import IMAGE_DTYPES, TOKEN_DTYPES, PackedTensors
from art.preprocessing.plot import plot_packed_tensors
from art.preprocessing.row_plan import Fit, Row, plan_rows
from art.preprocessing.tokenize import TokenizedResult
from art.types import Verbosity

__all__ = [
    "DiskPackedTensors",
    "PackedTensors",
    "fill_rows",
    "packed_tensors_from_dir",
    "packed_tensors_from_tokenized_results",
    "packed_tensors_to_dir",
    "plot_packed_tensors",
]

logger = logging.getLogger(__name__)

_Arrays = dict[str, npt.NDArray[np.generic]]

_PADDING = {
    "group_ids": -1,
    "parent_ids": -1,
    "input_pos": 0,
    "assistant_mask": False,
    "logprobs": np.nan,
    "advantages": 0.0,
    "weights": 0.0,
}
_NUMPY_DTYPES = {torch.int64: np.int64, torch.bool: np.bool_, torch.float32: np.float32}


def packed_tensors_from_tokenized_results(
    tokenized_results: Sequence[TokenizedResult],
    seq_len: int,
    pad_token_id: int = -100,
    truncate_long_results: bool = True,
    advantage_balance: float = 0.0,
    verbosity: Verbosity = 1,
    pack_results: bool = True,
    *,
    fit: Fit = "first",
    rng: random.Random | None = None,
) -> PackedTensors:
    """Lay tokenized results into rows of `seq_len` tokens.

    The rows come in random order. Over all trained tokens together, weights have mean 1, and so has the product of
    weight and absolute advantage: the scale of the rewards cancels.

    Args:
        tokenized_results: One for each token sequence; those without a trained token after their prompt are left out.
        seq_len: Length S of a row.
        pad_token_id: Fills the rest of a row.
        truncate_long_results: Cut results longer than a row; otherwise leave them out.
        advantage_balance: In [-1, 1]; above 0 negative advantages are multiplied by 1 - balance, below 0 positive
            ones by 1 + balance. At ±1 with advantages of one sign only, the advantages are NaN.
        verbosity: Above 0: log how full the rows are.
        pack_results: Put several results into a row; otherwise each gets its own.
        fit: "first" looks for room in all rows, "next" only in the newest one.
        rng: Draws ids and the order of rows; None: a new one, seeded by the system.
    """
    rng = rng or random.Random()
    results = list(tokenized_results)
    if not truncate_long_results:
        results = [result for result in results if len(result.token_ids) <= seq_len]
    if pack_results:
        rows = plan_rows(results, seq_len, fit, rng)
    else:
        rows = [row for result in results for row in plan_rows([result], seq_len, fit, rng)]
    if verbosity and rows:
        num_tokens = sum(row.num_tokens for row in rows)
        logger.info(
            "packed %d sequences into %d rows of %d tokens: %.0f%% used",
            sum(len(row.segments) for row in rows),
            len(rows),
            seq_len,
            100 * num_tokens / (len(rows) * seq_len),
        )
    return fill_rows(rows, seq_len, pad_token_id=pad_token_id, advantage_balance=advantage_balance, rng=rng)


def fill_rows(
    rows: Sequence[Row], row_tokens: int, *, pad_token_id: int, advantage_balance: float, rng: random.Random
) -> PackedTensors:
    """Make the tensors of planned rows, in random order.

    Args:
        rows: From `plan_rows`, none longer than `row_tokens`.
        row_tokens: Length S of a row.
        pad_token_id: Fills the rest of a row.
        advantage_balance: See `packed_tensors_from_tokenized_results`.
        rng: Draws the order.
    """
    rows = rng.sample(rows, len(rows))
    padding = {"tokens": pad_token_id, **_PADDING}
    arrays: _Arrays = {
        key: np.full((len(rows), row_tokens), padding[key], dtype=_NUMPY_DTYPES[dtype])
        for key, dtype in TOKEN_DTYPES.items()
    }
    for index, row in enumerate(rows):
        _fill_row({key: values[index] for key, values in arrays.items()}, row)
    _normalize(arrays, advantage_balance)
    tensors: dict[str, Any] = {key: torch.from_numpy(values) for key, values in arrays.items()}
    for key in IMAGE_DTYPES:
        tensors[key] = [_concatenated([getattr(segment, key) for segment in row.segments]) for row in rows]
    return cast(PackedTensors, tensors)


def _fill_row(arrays: _Arrays, row: Row) -> None:
    position = 0
    for segment in row.segments:
        result = segment.result
        part, place = slice(segment.start, segment.end), slice(position, position + len(segment))
        arrays["tokens"][place] = result.token_ids[part]
        arrays["input_pos"][place] = result.input_pos[part]
        arrays["assistant_mask"][place] = result.assistant_mask[part]
        arrays["logprobs"][place] = result.logprobs[part]
        arrays["advantages"][place] = result.advantage
        arrays["weights"][place] = result.weight
        arrays["parent_ids"][place] = segment.prompt_id
        arrays["group_ids"][place] = segment.completion_id
        num_prompt_tokens = min(max(result.prompt_length - segment.start, 0), len(segment))
        arrays["group_ids"][position : position + num_prompt_tokens] = segment.prompt_id
        position += len(segment)


def _normalize(arrays: _Arrays, advantage_balance: float) -> None:
    mask = arrays["assistant_mask"].astype(bool)
    weights = arrays["weights"][mask].astype(np.float64)
    advantages = arrays["advantages"][mask].astype(np.float64)
    arrays["weights"][:], arrays["advantages"][:] = 0, 0
    if not len(weights):
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        weights /= weights.mean()
        if advantage_balance > 0:
            advantages[advantages < 0] *= 1 - advantage_balance
        elif advantage_balance < 0:
            advantages[advantages > 0] *= 1 + advantage_balance
        advantages /= np.mean(np.abs(advantages) * weights)
    arrays["weights"][mask], arrays["advantages"][mask] = weights, advantages


def _concatenated(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(present) if present else None
