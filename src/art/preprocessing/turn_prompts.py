"""The prompt that the server saw before each trained turn, and what came between two turns.

The prompt of a turn is the rendering of all messages before it. Where the next prompt begins with it, followed by the
turn itself, the two turns fit into one token sequence: the rendered turn is replaced by the sampled tokens, and what
follows it is kept. Some templates break that, for example by leaving out the reasoning of earlier answers; then the
next turn needs a sequence of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from art.errors import TokenizationError
from art.preprocessing.assistant_spans import TrainedTurn
from art.preprocessing.chat import ChatRenderer

# Rendering every prompt costs quadratic time in the number of turns; from this many turns on, fewer renderings are
# tried first. They cost as much as four of the longest prompt.
MIN_TURNS_FOR_SHARED_RENDERING = 6
_PLACEHOLDER = "placeholderofaturn"
_REASONING_END = "</think>"
_REASONING_KEYS = ("reasoning", "reasoning_content")

Message = dict[str, Any]


@dataclass(frozen=True)
class TurnPrompt:
    """What the model saw before a trained turn.

    Attributes:
        text: Begins with the prompt; may be longer, when several turns share one rendering.
        length: The prompt is `text[:length]`.
        previous_content_end: Where in `text` the content of the trained turn before this one ends, if known.
    """

    text: str
    length: int
    previous_content_end: int | None = None

    def __str__(self) -> str:
        return self.text[: self.length]


@dataclass(frozen=True)
class Conversation:
    """A conversation with the turns to train, in the form that the chat template gets.

    Attributes:
        messages: All messages up to the last trained turn.
        tools: Tools for the template.
        turns: The trained turns, at least one.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    turns: list[TrainedTurn]

    def prompt_before(self, turn: TrainedTurn, renderer: ChatRenderer) -> str:
        """Render what the model saw before a turn."""
        return renderer.prompt(self.messages[: turn.message_index], self.tools)

    def prompt_with_placeholders(self, last: TrainedTurn, marked: Sequence[TrainedTurn], renderer: ChatRenderer) -> str:
        """Render the prompt of `last` with the content of earlier turns replaced by a placeholder."""
        messages = self.messages[: last.message_index]
        for turn in marked:
            message = {key: value for key, value in messages[turn.message_index].items() if key not in _REASONING_KEYS}
            messages[turn.message_index] = {**message, "content": self._placeholder}
        return renderer.prompt(messages, self.tools)

    def split_at_placeholders(self, text: str) -> list[str]:
        """Split what `prompt_with_placeholders` gave at the placeholders."""
        return text.split(self._placeholder)

    @cached_property
    def _placeholder(self) -> str:
        placeholder = _PLACEHOLDER
        while any(placeholder in str(message.get("content")) for message in self.messages):
            placeholder += "x"
        return placeholder


def turn_prompts(conversation: Conversation, renderer: ChatRenderer) -> list[TurnPrompt]:
    """Give the prompt of each trained turn."""
    turns = conversation.turns
    if len(turns) >= MIN_TURNS_FOR_SHARED_RENDERING:
        prompts = _prompts_from_one_rendering(conversation, renderer)
        if prompts is not None:
            return prompts
    texts = (conversation.prompt_before(turn, renderer) for turn in turns)
    return [TurnPrompt(text, len(text)) for text in texts]


def text_between(
    conversation: Conversation, number: int, prompts: Sequence[TurnPrompt], renderer: ChatRenderer
) -> str | None:
    """Give what stands between a trained turn and the next one, from the end of its rendering.

    Args:
        conversation: The conversation.
        number: Index of the turn among the trained turns; not the last.
        prompts: From `turn_prompts`.
        renderer: Renders further texts where the end of the turn has to be searched for.

    Returns:
        The text, which begins with the template's own end of the turn; None when the next prompt does not show
        the earlier prompt and this turn as they were.
    """
    prompt, following = prompts[number], prompts[number + 1]
    if prompt.text is not following.text and not following.text.startswith(str(prompt)):
        return None
    end = _end_of_turn(conversation, number, prompt.length, following, renderer)
    return None if end is None else following.text[end : following.length]


def _prompts_from_one_rendering(conversation: Conversation, renderer: ChatRenderer) -> list[TurnPrompt] | None:
    """Find all prompts within the last one; None when they are not all beginnings of it."""
    turns = conversation.turns
    text = conversation.prompt_before(turns[-1], renderer)
    if not _shows_in_full(text, conversation.messages[: turns[-1].message_index]):
        return None
    try:
        marked = conversation.prompt_with_placeholders(turns[-1], turns[:-1], renderer)
    except TokenizationError:
        return None  # the template checks what the answers say
    first, *others = conversation.split_at_placeholders(marked)
    if len(others) != len(turns) - 1 or not text.startswith(first):
        return None
    prompts = [TurnPrompt(text, len(first))]
    for piece in others:
        content_end = text.find(piece, prompts[-1].length)
        if content_end < 0:
            return None
        prompts.append(TurnPrompt(text, content_end + len(piece), content_end))
    if prompts[-1].length != len(text):
        return None
    for number in _numbers_to_verify(len(turns)):
        if conversation.prompt_before(turns[number], renderer) != str(prompts[number]):
            return None
    return prompts


def _shows_in_full(text: str, messages: Sequence[Message]) -> bool:
    """Tell whether the content of all messages stands in a text, in order.

    Then nothing was left out because of later messages, and earlier prompts do not show more than this one does.
    """
    position = 0
    for message in messages:
        content = message["content"]
        parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
        for part in parts:
            shown = part.strip()
            position = text.find(shown, position)
            if position < 0:
                return False
            position += len(shown)
    return True


def _numbers_to_verify(num_turns: int) -> Iterator[int]:
    """Choose turns whose prompts are rendered to check them: all of them together cost about two of the longest.

    What a template adds or moves depends on whether a later message exists (a later question, a later answer), so it
    shows between a short prompt and a long one, or between the last two.
    """
    number = 0
    while number < num_turns - 2:
        yield number
        number = 2 * number + 1
    yield num_turns - 2


def _end_of_turn(
    conversation: Conversation, number: int, start: int, following: TurnPrompt, renderer: ChatRenderer
) -> int | None:
    """Find where in the following prompt a turn ends that begins at `start`; None if it is not shown as it was."""
    turn = conversation.turns[number]
    if turn.is_sampled:
        sampled, end_token = renderer.split_end(turn.token_ids)
    else:
        sampled, end_token = str(renderer.tokenizer.decode(turn.token_ids)), ""
    if end_token and following.text.startswith(sampled + end_token, start):
        return start + len(sampled)
    if turn.has_tool_calls:
        # The rendered calls follow the content, and differ from the sampled ones in spacing at most.
        end = _skip_same_text(sampled, following.text, start, following.length)
        if end is None or not end_token:
            return end
        after_space = len(following.text) - len(following.text[end:].lstrip())
        return after_space if following.text.startswith(end_token, after_space) else end
    end = following.previous_content_end
    if end is None:
        end = _end_of_content(conversation, number, following, renderer)
    if end is None or end < start or not _shows_the_turn(sampled, following.text[start:end]):
        return None
    return end


def _end_of_content(
    conversation: Conversation, number: int, following: TurnPrompt, renderer: ChatRenderer
) -> int | None:
    turn, next_turn = conversation.turns[number : number + 2]
    marked = conversation.prompt_with_placeholders(next_turn, [turn], renderer)
    pieces = conversation.split_at_placeholders(marked)
    if len(pieces) != 2 or not str(following).endswith(pieces[1]):
        return None
    return following.length - len(pieces[1])


def _shows_the_turn(sampled: str, rendered: str) -> bool:
    """Tell whether a rendered turn stands for the sampled one.

    Templates and detokenizers differ in spaces, and callers edit what they send back. What counts is whether a part of
    the turn was left out in front, as reasoning is, or put in.
    """
    sampled, rendered = "".join(sampled.split()), "".join(rendered.split())
    if sampled == rendered:
        return True
    if (_REASONING_END in sampled) != (_REASONING_END in rendered):
        return False
    return not (sampled.endswith(rendered) or rendered.endswith(sampled))


def _skip_same_text(expected: str, text: str, start: int, stop: int) -> int | None:
    """Give the index in `text` after `expected`, ignoring white space in both; None if something else stands there."""
    index = start
    for character in expected:
        if character.isspace():
            continue
        while index < stop and text[index].isspace():
            index += 1
        if index >= stop or text[index] != character:
            return None
        index += 1
    return index
