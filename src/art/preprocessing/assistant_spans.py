"""Which turns of a conversation are trained, and with which tokens.

The tokens of a sampled turn are the ids that the server reported, never its text tokenized again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art.conversation import is_choice
from art.errors import ListContentError, TokenizationError
from art.preprocessing.tokenizer_protocol import Tokenizer
from art.types import MessageOrChoice

logger = logging.getLogger(__name__)

TOKEN_ID_PREFIX = "token_id:"
NAN = float("nan")


@dataclass(frozen=True)
class TrainedTurn:
    """An assistant turn that is trained.

    Attributes:
        message_index: Its place in the conversation.
        token_ids: The tokens to train, with the end-of-turn token if that was sampled.
        logprobs: Of the same length; NaN for tokens that nobody sampled.
        is_sampled: The ids are those that a server sampled; otherwise its text was tokenized.
        has_tool_calls: The turn calls tools, so its text in later prompts is more than its content.
    """

    message_index: int
    token_ids: list[int]
    logprobs: list[float]
    is_sampled: bool
    has_tool_calls: bool


def trained_turns(
    messages_and_choices: Sequence[MessageOrChoice], tokenizer: Tokenizer, allow_training_without_logprobs: bool
) -> list[TrainedTurn]:
    """Find the turns to train, in order.

    Args:
        messages_and_choices: A conversation.
        tokenizer: Turns text into ids where a turn has no sampled ids.
        allow_training_without_logprobs: Also train assistant messages, and Choices without logprobs, from their text.

    Raises:
        TokenizationError: A turn that is to be trained from its text calls tools, or its content is a list
            (`ListContentError`).
    """
    turns = []
    for index, entry in enumerate(messages_and_choices):
        turn = _sampled_turn(index, entry, tokenizer) if is_choice(entry) else None
        if turn is None and allow_training_without_logprobs:
            turn = _turn_from_text(index, entry, tokenizer)
        if turn is not None:
            turns.append(turn)
    return turns


def _sampled_turn(index: int, choice: Any, tokenizer: Tokenizer) -> TrainedTurn | None:
    logprobs = choice.logprobs
    entries = (logprobs.content or getattr(logprobs, "refusal", None)) if logprobs is not None else None
    if not entries:
        return None
    return TrainedTurn(
        message_index=index,
        token_ids=_sampled_ids([entry.token for entry in entries], tokenizer),
        logprobs=[NAN if entry.logprob is None else entry.logprob for entry in entries],
        is_sampled=True,
        has_tool_calls=bool(choice.message.tool_calls),
    )


def _sampled_ids(tokens: list[str], tokenizer: Tokenizer) -> list[int]:
    # One split for all tokens: asking each of them takes longer than the rest of the tokenizing.
    before, *numbers = "".join(tokens).split(TOKEN_ID_PREFIX)
    if not before and len(numbers) == len(tokens) and all(map(str.isdecimal, numbers)):
        return list(map(int, numbers))
    ids = [_id_of_token_text(token, tokenizer) for token in tokens]
    num_unknown = sum(token_id is None for token_id in ids)
    if num_unknown:
        logger.warning(
            "%d of %d sampled tokens are not in the tokenizer's vocabulary and count as its end token; "
            "have the server return tokens as ids (return_tokens_as_token_ids)",
            num_unknown,
            len(ids),
        )
    end_id = tokenizer.eos_token_id
    return [end_id if token_id is None else token_id for token_id in ids]


def _id_of_token_text(token: str, tokenizer: Tokenizer) -> int | None:
    if not token:
        return None
    token_id = tokenizer.convert_tokens_to_ids(token)
    if token_id is not None and token_id != getattr(tokenizer, "unk_token_id", None):
        return int(token_id)
    # The vocabulary of a byte-level tokenizer spells " a" as "Ġa", servers report the text.
    ids = tokenizer.encode(token, add_special_tokens=False)
    return ids[0] if len(ids) == 1 else None


def _turn_from_text(index: int, entry: MessageOrChoice, tokenizer: Tokenizer) -> TrainedTurn | None:
    content: Any
    tool_calls: Any
    if is_choice(entry):
        content, tool_calls = entry.message.content, entry.message.tool_calls
    elif isinstance(entry, Mapping) and entry.get("role") == "assistant":
        content, tool_calls = entry.get("content"), entry.get("tool_calls")
    else:
        return None
    if tool_calls:
        raise TokenizationError(
            f"message {index} calls tools and has no sampled token ids: its exact tokens are unknown, so it cannot be "
            f"trained. Use a Choice with logprobs, or turn allow_training_without_logprobs off.",
            message_index=index,
        )
    if not isinstance(content, str | None):
        raise ListContentError(
            f"message {index} is to be trained from its text, but its content is a {type(content).__name__}",
            message_index=index,
        )
    ids = tokenizer.encode(content, add_special_tokens=False) if content else []
    if not ids:
        return None
    return TrainedTurn(index, list(ids), [NAN] * len(ids), is_sampled=False, has_tool_calls=False)
