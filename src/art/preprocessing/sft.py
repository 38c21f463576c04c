"""Batches of supervised fine-tuning: trajectories as tensors, with labels for what is trained."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.dev.settings import ToolSchemaFormat
from art.errors import TokenizationError
from art.preprocessing.chat import ChatRenderer
from art.preprocessing.sft_turns import SFTSequence, sft_sequences
from art.preprocessing.tokenizer_protocol import Tokenizer
from art.trajectories import History, Trajectory

if TYPE_CHECKING:
    import torch

__all__ = ["UNTRAINED_LABEL", "SFTBatch", "tokenize_sft_batch"]

logger = logging.getLogger(__name__)

UNTRAINED_LABEL = -100  # what transformers' losses ignore


@dataclass
class SFTBatch:
    """What one optimizer step trains on.

    Attributes:
        trajectory_tensors: One dictionary for each sequence, with `input_ids`, `attention_mask` (ones) and `labels`
            (-100 where nothing is trained), int64 of shape (1, T).
        learning_rate: Rate of the step.
        num_trajectories: Trajectories in it, without the dropped ones.
        num_trainable_tokens: Trained tokens in it.
        num_tokens: All tokens in it.
        num_dropped_trajectories: Trajectories of which a sequence was too long.
    """

    trajectory_tensors: list[dict[str, torch.Tensor]]
    learning_rate: float
    num_trajectories: int
    num_trainable_tokens: int
    num_tokens: int = 0
    num_dropped_trajectories: int = 0


def tokenize_sft_batch(
    trajectory_batch: Sequence[Trajectory],
    learning_rate: float,
    tokenizer: Tokenizer,
    instruction_part: str = "",
    response_part: str = "",
    chat_template_kwargs: Mapping[str, Any] | None = None,
    chat_template_tool_schema_format: ToolSchemaFormat = "default",
    max_seq_length: int | None = None,
    *,
    first_index: int = 0,
) -> SFTBatch:
    """Tokenize trajectories whose assistant turns are to be learnt.

    All histories of a trajectory are trained. Choices count as assistant messages. A history mostly gives one sequence;
    see `art.preprocessing.sft_turns`.

    Args:
        trajectory_batch: The trajectories.
        learning_rate: Rate of the batch.
        tokenizer: The base model's, with the chat template that the server uses.
        instruction_part: Not needed, since roles decide; accepted for older scripts.
        response_part: Not needed either.
        chat_template_kwargs: Variables for the chat template, the same as at inference.
        chat_template_tool_schema_format: Shape of tools in the template: "vllm_openai" as vLLM gives them.
        max_seq_length: Longer sequences are dropped; None: none are.
        first_index: Number of the first trajectory within the whole call, for errors.

    Raises:
        TokenizationError: A trajectory is broken; names it.
    """
    renderer = ChatRenderer(tokenizer, chat_template_kwargs, chat_template_tool_schema_format)
    remarks = SFTRemarks()
    batch = tokenize_with(renderer, trajectory_batch, learning_rate, max_seq_length, first_index, remarks)
    remarks.log(max_seq_length)
    return batch


@dataclass
class SFTRemarks:
    """What is to be said of trajectories that are not trained, once for many batches.

    Attributes:
        num_dropped: Trajectories of which a sequence was too long.
        longest: Tokens of the longest such sequence.
        unanswered: Trajectories without an assistant message.
    """

    num_dropped: int = 0
    longest: int = 0
    unanswered: list[int] = field(default_factory=list)

    def log(self, max_seq_length: int | None) -> None:
        """Warn of them, if there are any."""
        if self.num_dropped:
            logger.warning(
                "dropped sequences of %d trajectories that are longer than %s tokens (the longest has %d); raise "
                "max_seq_length to train on them",
                self.num_dropped,
                max_seq_length,
                self.longest,
            )
        if self.unanswered:
            logger.warning(
                "%d trajectories hold no assistant message, first trajectory %d",
                len(self.unanswered),
                self.unanswered[0],
            )


def tokenize_with(
    renderer: ChatRenderer,
    trajectory_batch: Sequence[Trajectory],
    learning_rate: float,
    max_seq_length: int | None,
    first_index: int,
    remarks: SFTRemarks,
) -> SFTBatch:
    """Do what `tokenize_sft_batch` does, with a renderer and remarks that serve many batches."""
    kept: list[SFTSequence] = []
    num_dropped = 0
    for index, trajectory in enumerate(trajectory_batch, start=first_index):
        sequences = list(_sequences_of_trajectory(trajectory, index, renderer))
        lengths = [len(found.token_ids) for found in sequences]
        if max_seq_length and max(lengths, default=0) > max_seq_length:
            num_dropped += 1
            remarks.longest = max(remarks.longest, *lengths)
        if not sequences:
            remarks.unanswered.append(index)
        kept += [found for found in sequences if not max_seq_length or len(found.token_ids) <= max_seq_length]
    remarks.num_dropped += num_dropped
    return SFTBatch(
        trajectory_tensors=[_as_tensors(sequence) for sequence in kept],
        learning_rate=learning_rate,
        num_trajectories=len(trajectory_batch) - num_dropped,
        num_trainable_tokens=sum(sequence.num_trained for sequence in kept),
        num_tokens=sum(len(sequence.token_ids) for sequence in kept),
        num_dropped_trajectories=num_dropped,
    )


def _sequences_of_trajectory(trajectory: Trajectory, index: int, renderer: ChatRenderer) -> Iterator[SFTSequence]:
    histories: list[Trajectory | History] = [trajectory, *trajectory.additional_histories]
    for number, history in enumerate(histories):
        try:
            found = sft_sequences(history.messages_and_choices, history.tools, renderer)
        except TokenizationError as err:
            where = f"trajectory {index}" + (f", additional history {number - 1}" if number else "")
            raise TokenizationError(
                f"{where}: {err.message}", trajectory_index=index, message_index=err.message_index
            ) from err
        yield from (sequence for sequence in found if sequence.num_trained)


def _as_tensors(sequence: SFTSequence) -> dict[str, torch.Tensor]:
    import torch

    ids = torch.tensor([sequence.token_ids], dtype=torch.int64)
    is_trained = torch.tensor([sequence.is_trained])
    is_trained[0, 0] = False  # nothing predicts the first token
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": ids.masked_fill(~is_trained, UNTRAINED_LABEL),
    }
