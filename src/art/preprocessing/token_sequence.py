"""Token sequences of one conversation: rendered context and sampled turns, joined.

Mostly one sequence holds all trained turns. A turn whose prompt does not continue the sequence begins a new one, in
which the earlier turns are context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art.errors import TokenizationError
from art.preprocessing.assistant_spans import NAN, TrainedTurn, trained_turns
from art.preprocessing.chat import ChatRenderer
from art.preprocessing.turn_prompts import Conversation, text_between, turn_prompts
from art.types import MessageOrChoice

if TYPE_CHECKING:
    from art.preprocessing.images import ConversationImages


@dataclass
class TokenSequence:
    """Tokens of a conversation with what each is for; grows while it is built.

    Attributes:
        images: The images of the whole conversation, or None.
        chat: Rendered text.
        token_ids: (T,)
        assistant_mask: (T,), 1 where trained.
        logprobs: (T,), NaN for tokens that nobody sampled.
        image_starts: Where each image that it holds begins.
        num_trained: Number of trained tokens.
        first_trained_message: Index of the message of its first trained turn.
    """

    images: ConversationImages | None
    chat: str = ""
    token_ids: list[int] = field(default_factory=list)
    assistant_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    image_starts: list[int] = field(default_factory=list)
    num_trained: int = 0
    first_trained_message: int = 0

    def add_context(self, token_ids: Sequence[int]) -> None:
        """Append tokens that are not trained."""
        if self.images is not None:
            expanded, starts = _expand(token_ids, self.images, len(self.image_starts))
            self.image_starts += [len(self.token_ids) + start for start in starts]
            token_ids = expanded
        self.token_ids += token_ids
        self.assistant_mask += [0] * len(token_ids)
        self.logprobs += [NAN] * len(token_ids)

    def add_turn(self, turn: TrainedTurn) -> None:
        """Append the tokens of a trained turn."""
        if not self.num_trained:
            self.first_trained_message = turn.message_index
        self.token_ids += turn.token_ids
        self.assistant_mask += [1] * len(turn.token_ids)
        self.logprobs += turn.logprobs
        self.num_trained += len(turn.token_ids)


def sequences_of(
    messages_and_choices: Sequence[MessageOrChoice],
    tools: Sequence[Any] | None,
    renderer: ChatRenderer,
    image_processor: Any,
    allow_training_without_logprobs: bool,
) -> list[TokenSequence]:
    """Tokenize a conversation up to its last trained turn; nothing if no turn is trained.

    Raises:
        TokenizationError: The chat template, an image, or a turn that is trained from its text is unusable.
    """
    turns = trained_turns(messages_and_choices, renderer.tokenizer, allow_training_without_logprobs)
    if not turns:
        return []
    entries = messages_and_choices[: turns[-1].message_index + 1]
    conversation = Conversation(renderer.messages(entries), renderer.tools(tools), turns)
    images = _load_images(entries[:-1], image_processor, renderer)
    prompts = turn_prompts(conversation, renderer)
    sequences: list[TokenSequence] = []
    for number, turn in enumerate(turns):
        between = text_between(conversation, number - 1, prompts, renderer) if number else None
        if between is None:
            sequences.append(TokenSequence(images))
            sequences[-1].add_context(renderer.encode_prompt(str(prompts[number])))
        else:
            sequences[-1].add_context(_without_second_end(renderer.encode(between), turns[number - 1]))
        sequences[-1].add_turn(turn)
        content = conversation.messages[turn.message_index]["content"]
        sequences[-1].chat = str(prompts[number]) + (content if isinstance(content, str) else "")
    if images is not None and len(sequences[-1].image_starts) != len(images.sources):
        raise TokenizationError(
            f"the conversation has {len(images.sources)} images, "
            f"but the chat template left places for {len(sequences[-1].image_starts)}"
        )
    return sequences


def _without_second_end(token_ids: list[int], turn: TrainedTurn) -> list[int]:
    """Leave out the template's end-of-turn token where the model sampled it itself."""
    return token_ids[1:] if turn.is_sampled and token_ids[:1] == turn.token_ids[-1:] else token_ids


def _load_images(
    entries: Sequence[MessageOrChoice], image_processor: Any, renderer: ChatRenderer
) -> ConversationImages | None:
    messages = [entry for entry in entries if isinstance(entry, dict)]
    if not any(isinstance(message.get("content"), list) for message in messages):
        return None
    from art.preprocessing.images import load_images  # needs torch

    return load_images(messages, image_processor, renderer.tokenizer)


def _expand(token_ids: Sequence[int], images: ConversationImages, first_image: int) -> tuple[list[int], list[int]]:
    from art.preprocessing.images import expand_placeholders  # needs torch

    return expand_placeholders(token_ids, images, first_image)
