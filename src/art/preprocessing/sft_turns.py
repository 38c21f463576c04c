"""Token sequences of a conversation whose answers are given, with the mask of what is trained: by role, exactly.

The prompt of an answer is what the server would show the model before it; what the template adds to that when the
answer is there is what the model would have to say: its text, its tool calls, and the token that ends the turn. Nothing
else is trained. As long as the next prompt begins with everything so far, all answers share one sequence; templates
that change earlier turns later on (by leaving out their reasoning, say) begin a new one, in which the earlier answers
are context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from art.conversation import is_choice
from art.errors import TokenizationError
from art.preprocessing.chat import ChatRenderer
from art.preprocessing.sft_messages import Message, checked_messages
from art.types import MessageOrChoice

_ASSISTANT = "assistant"
_PLACEHOLDER = "placeholderofananswer"

RenderedTools = list[dict[str, Any]] | None


@dataclass
class SFTSequence:
    """A sequence to train on; grows while it is built.

    Attributes:
        text: What its tokens spell.
        token_ids: (T,)
        is_trained: (T,), True for the tokens of answers.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    is_trained: list[bool] = field(default_factory=list)

    @property
    def num_trained(self) -> int:
        """How many tokens are trained. The first of all is not, since nothing comes before it."""
        return sum(self.is_trained[1:])

    def add(self, text: str, renderer: ChatRenderer, *, is_trained: bool) -> None:
        """Append text, encoded by itself as prompt and answer are at inference."""
        ids = renderer.encode(text) if text else []
        self.text += text
        self.token_ids += ids
        self.is_trained += [is_trained] * len(ids)


def sft_sequences(
    messages_and_choices: Sequence[MessageOrChoice], tools: Sequence[Any] | None, renderer: ChatRenderer
) -> list[SFTSequence]:
    """Tokenize a conversation up to its last answer; nothing if there is no answer.

    Raises:
        TokenizationError: A message is malformed, or the chat template refuses the conversation.
    """
    messages = checked_messages(messages_and_choices, renderer)
    rendered_tools = renderer.tools(tools)
    sequences: list[SFTSequence] = []
    for index, message in enumerate(messages):
        if message["role"] != _ASSISTANT:
            continue
        said = _with_reasoning(message, messages_and_choices[index])
        context, answer = _split([*messages[:index], said], rendered_tools, renderer)
        if not sequences or not context.startswith(sequences[-1].text):
            sequences.append(SFTSequence())
        sequence = sequences[-1]
        sequence.add(context[len(sequence.text) :], renderer, is_trained=False)
        sequence.add(answer, renderer, is_trained=True)
    return sequences


def _with_reasoning(message: Message, entry: MessageOrChoice) -> Message:
    """Give a Choice's message with the reasoning that was sampled: it is learnt, though no later prompt shows it."""
    if not is_choice(entry):
        return message
    reasoning = getattr(entry.message, "reasoning_content", None) or getattr(entry.message, "reasoning", None)
    return {**message, "reasoning_content": reasoning} if reasoning else message


def _split(messages: list[Message], tools: RenderedTools, renderer: ChatRenderer) -> tuple[str, str]:
    """Give what the model sees before the last message, and what it is to say."""
    try:
        prompt = renderer.prompt(messages[:-1], tools)
    except TokenizationError:  # some templates want a message, and the answer may be the first one
        prompt = None
    try:
        rendered = renderer.conversation(messages, tools)
        if prompt is None or not rendered.startswith(prompt):
            prompt = _text_before_answer(messages, tools, renderer, rendered)
        answer = renderer.without_space_after_end(rendered[len(prompt) :])
        _require_shown(messages[-1], answer)
    except TokenizationError as err:
        raise TokenizationError(err.message, message_index=len(messages) - 1) from err
    return prompt, answer


def _require_shown(message: Message, answer: str) -> None:
    """Refuse an answer that the template leaves out: the model would learn to say nothing."""
    names = [str(call["function"]["name"]) for call in message.get("tool_calls") or []]
    words = str(message["content"]).split() if isinstance(message["content"], str) and not names else []
    for text in names or words[-1:]:
        if answer.count(text) < names.count(text) or text not in answer:
            what = f"the call of {text!r}" if names else repr(text)
            raise TokenizationError(
                f"the chat template does not show {what}: what the model should learn to say is not what this message "
                "says"
            )


def _text_before_answer(messages: list[Message], tools: RenderedTools, renderer: ChatRenderer, rendered: str) -> str:
    """Find where the last message begins in a rendering that does not show it after the prompt for it.

    Some templates open the model's reasoning in the prompt, and leave reasoning out of finished answers.
    """
    placeholder = _PLACEHOLDER
    while any(placeholder in str(message.get("content")) for message in messages):
        placeholder += "x"
    marked = renderer.conversation([*messages[:-1], {"role": _ASSISTANT, "content": placeholder}], tools)
    before, found, _ = marked.partition(placeholder)
    if not found or not rendered.startswith(before):
        raise TokenizationError(
            "the chat template does not show this answer after the prompt that leads to it, so what the model should "
            "learn to say is unknown"
        )
    return before
