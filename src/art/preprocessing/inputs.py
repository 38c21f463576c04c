"""What a training step reads: one row of a packed batch, with the configuration it is trained under."""

from __future__ import annotations

from typing import NotRequired, cast

import torch

from art.dev.train import TrainConfig as DevTrainConfig
from art.preprocessing.packed_tensors import TOKEN_DTYPES, PackedTensors
from art.types import TrainConfig

# A warm-up pass compiles and allocates; it must neither take long nor move the weights.
WARMUP_TOKENS = 1024
WARMUP_LEARNING_RATE = 1e-9


class TrainInputs(PackedTensors):
    """One packed row, shapes (1, S), and how to train on it.

    Attributes:
        original_logprobs: The sampler's logprobs, float32 by token, where `logprobs` were recomputed.
        config: The public training configuration.
        _config: RL options.
        return_new_logprobs: Ask for logprobs in place of a loss.
    """

    original_logprobs: NotRequired[torch.Tensor]
    config: TrainConfig
    _config: DevTrainConfig
    return_new_logprobs: bool


def create_train_inputs(
    packed_tensors: PackedTensors, offset: int, config: TrainConfig, _config: DevTrainConfig, warmup: bool
) -> TrainInputs:
    """Take one row of a packed batch, with its configuration.

    Args:
        packed_tensors: The batch.
        offset: Index of the row.
        config: The public training configuration; not changed.
        _config: RL options; not changed.
        warmup: Take at most the first 1,024 tokens, no images, a learning rate of 1e-9 and no KL penalty.
    """
    row = take_row(packed_tensors, offset)
    if warmup:
        row = take_row(packed_tensors, offset, WARMUP_TOKENS)
        row["pixel_values"], row["image_grid_thw"] = [None], [None]
        config = config.model_copy(update={"learning_rate": WARMUP_LEARNING_RATE, "kl_penalty_coef": 0.0})
        _config = cast(DevTrainConfig, {**_config, "kl_penalty_coef": 0.0})
    return cast(TrainInputs, {**row, "config": config, "_config": _config, "return_new_logprobs": False})


def take_row(packed_tensors: PackedTensors, offset: int, num_tokens: int | None = None) -> PackedTensors:
    """Return one row of a packed batch, still with its batch dimension; the tensors are views.

    Args:
        packed_tensors: The batch.
        offset: Index of the row.
        num_tokens: Take at most so many tokens of it; None for all.
    """
    row: dict[str, object] = {key: value[offset : offset + 1] for key, value in packed_tensors.items()}  # type: ignore[index]
    if num_tokens is not None:
        row |= {key: cast(torch.Tensor, row[key])[:, :num_tokens] for key in TOKEN_DTYPES}
    return cast(PackedTensors, row)


def trim_padding(row: PackedTensors, multiple: int = 1) -> PackedTensors:
    """Cut a row of shape (1, S) behind its last token that is not padding.

    Args:
        row: The row.
        multiple: Keep padding up to a multiple of so many tokens, so that few lengths occur.
    """
    is_token = row["group_ids"][0] != -1
    used = int(is_token.nonzero().max()) + 1 if bool(is_token.any()) else 0
    return take_row(row, 0, max(1, -(-used // multiple) * multiple))
