"""Trajectories as tokens: prompts from the chat template, trained turns exactly as they were sampled."""

from __future__ import annotations

import logging
import random
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from art.dev.settings import ToolSchemaFormat
from art.errors import TokenizationError
from art.preprocessing.advantages import group_advantages
from art.preprocessing.chat import ChatRenderer
from art.preprocessing.sft import SFTBatch, tokenize_sft_batch
from art.preprocessing.shared_prompt import shared_prompt_length
from art.preprocessing.token_sequence import TokenSequence, sequences_of
from art.preprocessing.tokenizer_protocol import Tokenizer
from art.trajectories import History, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    import torch

__all__ = [
    "SFTBatch",
    "TokenizedResult",
    "tokenize_sft_batch",
    "tokenize_trajectory",
    "tokenize_trajectory_groups",
]

logger = logging.getLogger(__name__)

WEIGHT_EPSILON = 1e-6
MAX_RANDOM_ID = 2**63 - 1  # ids are int64; -1 marks padding


@dataclass
class TokenizedResult:
    """A token sequence to train on, with what each of its T tokens is for.

    Attributes:
        advantage: Of the whole trajectory.
        chat: The conversation as rendered text.
        token_ids: (T,)
        input_pos: Positions, 0 to T - 1.
        assistant_mask: (T,), 1 where the token is trained.
        logprobs: (T,), NaN for tokens that nobody sampled.
        pixel_values: Patches of the images, or None.
        image_grid_thw: Grids of the images, or None.
        trajectory: Where it comes from.
        weight: One over the number of trained tokens of the trajectory.
        prompt_id: Shared by all results of a group.
        prompt_length: How many tokens at the beginning are the same in all results of the group, less one: the last
            prompt token is repeated, since it predicts the first sampled one.
        image_starts: Where in `token_ids` each image begins; empty also if not known.
    """

    advantage: float
    chat: str
    token_ids: list[int]
    input_pos: list[int]
    assistant_mask: list[int]
    logprobs: list[float]
    pixel_values: torch.Tensor | None
    image_grid_thw: torch.Tensor | None
    trajectory: Trajectory
    _tokenizer: Tokenizer = field(repr=False)
    weight: float = 0.0
    prompt_id: int = 0
    prompt_length: int = 0
    image_starts: list[int] = field(default_factory=list)

    @cached_property
    def tokens(self) -> list[str]:
        """The text of each token."""
        return [self._tokenizer.decode(token_id) for token_id in self.token_ids]

    def without_prompt(self) -> TokenizedResult:
        """Give a copy without the first `prompt_length` tokens and without images."""
        start = self.prompt_length
        return replace(
            self,
            token_ids=self.token_ids[start:],
            input_pos=self.input_pos[start:],
            assistant_mask=self.assistant_mask[start:],
            logprobs=self.logprobs[start:],
            pixel_values=None,
            image_grid_thw=None,
            prompt_length=0,
            image_starts=[],
        )


def tokenize_trajectory_groups(
    tokenizer: Tokenizer,
    trajectory_groups: Iterable[TrajectoryGroup],
    allow_training_without_logprobs: bool,
    scale_rewards: bool,
    shuffle_group_trajectories: bool = True,
    image_processor: Any = None,
    drop_zero_advantage_trajectories: bool = True,
    chat_template_kwargs: Mapping[str, object] | None = None,
    chat_template_tool_schema_format: ToolSchemaFormat = "default",
    *,
    rng: random.Random | None = None,
) -> Generator[TokenizedResult, None, None]:
    """Tokenize every trainable history of every trajectory that differs from its group's mean reward.

    A history gives one result, or several where the chat template changes earlier turns later on (as those do that
    leave out old reasoning): each turn is trained after exactly the prompt that it was sampled with.

    Args:
        tokenizer: The base model's, with the chat template that served the rollouts.
        trajectory_groups: Rollouts; a group's exceptions do not count.
        allow_training_without_logprobs: Also train assistant messages, and Choices without logprobs, from their text.
        scale_rewards: Divide advantages by the standard deviation of the group's rewards.
        shuffle_group_trajectories: Give the results of a group in random order.
        image_processor: The base model's, or None.
        drop_zero_advantage_trajectories: Leave out trajectories whose advantage is 0.
        chat_template_kwargs: Variables for the chat template, the same as at inference.
        chat_template_tool_schema_format: Shape of tools in the template: "vllm_openai" as vLLM gives them.
        rng: Draws prompt ids and the order; None: a new one, seeded by the system.

    Raises:
        TokenizationError: A trajectory cannot be tokenized; names it.
    """
    rng = rng or random.Random()
    renderer = ChatRenderer(tokenizer, chat_template_kwargs, chat_template_tool_schema_format)
    for group_index, group in enumerate(trajectory_groups):
        advantages = group_advantages([trajectory.reward for trajectory in group.trajectories], scale_rewards)
        sequences: list[TokenSequence] = []
        results: list[TokenizedResult] = []
        for index, (trajectory, advantage) in enumerate(zip(group.trajectories, advantages.tolist(), strict=True)):
            if advantage == 0.0 and drop_zero_advantage_trajectories:
                continue
            with _naming_the_trajectory(group_index, index):
                found = _sequences_of_trajectory(trajectory, renderer, image_processor, allow_training_without_logprobs)
            weight = 1 / (sum(sequence.num_trained for sequence in found) + WEIGHT_EPSILON)
            sequences += found
            results += [_as_result(sequence, tokenizer, trajectory, advantage, weight) for sequence in found]
        renderer.forget_prompts()
        prompt_id = rng.randint(1, MAX_RANDOM_ID)
        prompt_length = shared_prompt_length(sequences)
        for result in results:
            result.prompt_id, result.prompt_length = prompt_id, prompt_length
        if shuffle_group_trajectories:
            rng.shuffle(results)
        yield from results


def tokenize_trajectory(
    tokenizer: Tokenizer,
    image_processor: Any,
    history: History,
    advantage: float,
    allow_training_without_logprobs: bool,
    trajectory: Trajectory,
    chat_template_kwargs: Mapping[str, object] | None = None,
    chat_template_tool_schema_format: ToolSchemaFormat = "default",
) -> TokenizedResult | None:
    """Tokenize one history up to its last trained turn.

    Args:
        tokenizer: The base model's, with the chat template that served the rollouts.
        image_processor: The base model's, or None.
        history: The conversation.
        advantage: Of its trajectory.
        allow_training_without_logprobs: Also train assistant messages, and Choices without logprobs, from their text.
        trajectory: Where the history belongs.
        chat_template_kwargs: Variables for the chat template, the same as at inference.
        chat_template_tool_schema_format: Shape of tools in the template: "vllm_openai" as vLLM gives them.

    Returns:
        The result, without weight and prompt id; None if no turn is trained.

    Raises:
        TokenizationError: The history cannot be tokenized, or not as one sequence: the prompt of a later turn does
            not show an earlier turn as it was sampled (`tokenize_trajectory_groups` then gives several results).
    """
    renderer = ChatRenderer(tokenizer, chat_template_kwargs, chat_template_tool_schema_format)
    sequences = sequences_of(
        history.messages_and_choices, history.tools, renderer, image_processor, allow_training_without_logprobs
    )
    if not sequences:
        return None
    if len(sequences) > 1:
        message_index = sequences[1].first_trained_message
        raise TokenizationError(
            f"the prompt that message {message_index} answers does not show the earlier turns as they were sampled: "
            f"the chat template changes them later on, for example by leaving out their reasoning. One sequence "
            f"cannot hold both; tokenize_trajectory_groups gives {len(sequences)} results for this history. A template "
            f"or template options that keep earlier turns as they were avoid it.",
            message_index=message_index,
        )
    return _as_result(sequences[0], tokenizer, trajectory, advantage, 0.0)


def _sequences_of_trajectory(
    trajectory: Trajectory, renderer: ChatRenderer, image_processor: Any, allow_training_without_logprobs: bool
) -> list[TokenSequence]:
    histories = [(trajectory.messages_and_choices, trajectory.tools)]
    histories += [(history.messages_and_choices, history.tools) for history in trajectory.additional_histories]
    return [
        sequence
        for messages_and_choices, tools in histories
        for sequence in sequences_of(
            messages_and_choices, tools, renderer, image_processor, allow_training_without_logprobs
        )
    ]


def _as_result(
    sequence: TokenSequence, tokenizer: Tokenizer, trajectory: Trajectory, advantage: float, weight: float
) -> TokenizedResult:
    images = sequence.images
    pixel_values, image_grid_thw = images.first(len(sequence.image_starts)) if images else (None, None)
    return TokenizedResult(
        advantage=advantage,
        chat=sequence.chat,
        token_ids=sequence.token_ids,
        input_pos=list(range(len(sequence.token_ids))),
        assistant_mask=sequence.assistant_mask,
        logprobs=sequence.logprobs,
        pixel_values=pixel_values,
        image_grid_thw=image_grid_thw,
        trajectory=trajectory,
        _tokenizer=tokenizer,
        weight=weight,
        image_starts=sequence.image_starts,
    )


@contextmanager
def _naming_the_trajectory(group_index: int, index: int) -> Generator[None, None, None]:
    try:
        yield
    except TokenizationError as err:
        raise type(err)(
            f"trajectory {index} of group {group_index}: {err.message}",
            trajectory_index=index,
            message_index=err.message_index,
        ) from err
