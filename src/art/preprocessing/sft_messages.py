"""Check the messages of a conversation whose answers are given: what is wrong with one is said before it is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from art.errors import DataError, TokenizationError
from art.preprocessing.chat import ChatRenderer
from art.types import MessageOrChoice

Message = dict[str, Any]


def checked_messages(messages_and_choices: Sequence[MessageOrChoice], renderer: ChatRenderer) -> list[Message]:
    """Give the messages that the chat template gets.

    Raises:
        TokenizationError: One of them is malformed; names it.
    """
    messages = []
    for index, entry in enumerate(messages_and_choices):
        try:
            fault = _fault_as_given(entry) if isinstance(entry, Mapping) else None
            if fault is None:
                message = renderer.message(entry)
                fault = _fault_of_calls(message)
        except (DataError, KeyError, TypeError, ValueError, AttributeError) as err:
            raise TokenizationError(
                f"message {index} is malformed: {type(err).__name__}: {err}", message_index=index
            ) from err
        if fault is not None:
            raise TokenizationError(f"message {index} {fault}", message_index=index)
        messages.append(message)
    return messages


def _fault_as_given(entry: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a message that might be rendered all the same; None for nothing."""
    role, content, calls = entry.get("role"), entry.get("content"), entry.get("tool_calls")
    if not isinstance(role, str) or not role:
        return "has no role"
    if content is None and role == "assistant" and not calls:
        return "has neither content nor tool calls"
    if content is None and role not in ("assistant", "tool"):
        return "has no content"
    if content is not None and not isinstance(content, str | list | tuple):
        return f"has content of the type {type(content).__name__}, which is no text"
    if calls is not None and not (isinstance(calls, list | tuple) and all(isinstance(call, Mapping) for call in calls)):
        return "has tool_calls that are no list of dicts"
    for part in content if isinstance(content, list | tuple) else ():
        if isinstance(part, Mapping) and part.get("type") == "text" and not isinstance(part.get("text"), str):
            return "has a part of the type text without any text"
        if not isinstance(part, str) and not (isinstance(part, Mapping) and part.get("type") == "text"):
            return "holds more than text (an image, perhaps), which supervised fine-tuning does not take"
    return None


def _fault_of_calls(message: Message) -> str | None:
    for call in message.get("tool_calls") or []:
        name, arguments = call["function"].get("name"), call["function"]["arguments"]
        if not isinstance(name, str) or not name:
            return "calls a tool without a name"
        if not isinstance(arguments, dict | list):
            return f"calls {name!r} with arguments that are no JSON object: {str(arguments)[:80]!r}"
    return None
