"""Reading, checking and dumping the entries of a conversation: messages, Choices, tools.

Pure functions, and the field types that `art.trajectories` builds its models from. An entry is one of

- a mapping with a role: a message, kept as given;
- a `Choice`, or an object of another library with the same attributes (litellm has one): an answer of the model;
- the dump of a `Choice`, which becomes a `Choice` again;
- a pydantic message object, such as `response.choices[0].message`, which becomes a mapping.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias, TypeGuard, cast

import pydantic

from art.errors import DataError
from art.types import Choice, Message, Messages, MessagesAndChoices, Tools

_MISSPELT_FROM = 0.85  # of difflib's ratio


def get_messages(messages_and_choices: MessagesAndChoices) -> Messages:
    """Turn a conversation into messages that an OpenAI-compatible server accepts.

    A Choice becomes an assistant message with its text and tool calls; its reasoning is dropped. A message is
    copied, and content that is missing or None becomes "".

    Raises:
        DataError: An entry is neither a message nor a Choice.
    """
    return [_as_message(entry, position) for position, entry in enumerate(messages_and_choices)]


def message_for_logging(entry: Any) -> dict[str, Any]:
    """Give an entry as a plain dict with `trainable`, which is True for a Choice; reasoning is kept."""
    if is_choice(entry):
        message = entry.message.model_dump(mode="json", exclude_none=True, warnings=False)
        return {**message, "content": message.get("content", ""), "trainable": True}
    return {**_as_message(entry, None), "trainable": False}


def is_choice(entry: object) -> TypeGuard[Choice]:
    """Say whether an entry is a Choice, of OpenAI's client or of a library with the same attributes."""
    return isinstance(entry, Choice) or (
        isinstance(entry, pydantic.BaseModel) and hasattr(entry, "message") and hasattr(entry, "finish_reason")
    )


def refuse_misnamed_fields(cls: type[pydantic.BaseModel], values: Any) -> Any:
    """Refuse keywords that can only be meant for another field: `messages`, and misspelt names.

    Other unknown keywords are ignored, since old scripts give some.
    """
    if not isinstance(values, Mapping):
        return values
    if "messages" in values and "messages" not in cls.model_fields:
        raise ValueError(
            f"{cls.__name__} has no field `messages`; "
            f"use `messages_and_choices=`, with the Choice of each answer that is to be trained"
        )
    if cls.model_config.get("extra") != "allow":
        for name in values.keys() - cls.model_fields.keys():
            for similar in difflib.get_close_matches(str(name), list(cls.model_fields), n=1, cutoff=_MISSPELT_FROM):
                raise ValueError(f"{cls.__name__} has no field {name!r}; did you mean {similar}?")
    return values


def _as_message(entry: Any, position: int | None) -> Message:
    if is_choice(entry):
        message: dict[str, Any] = {"role": "assistant", "content": entry.message.content or ""}
        if entry.message.tool_calls:
            message["tool_calls"] = [call.model_dump(mode="json", warnings=False) for call in entry.message.tool_calls]
        return cast(Message, message)
    if is_message_object(entry):
        entry = entry.model_dump(mode="json", exclude_none=True)
    if not isinstance(entry, Mapping):
        where = "" if position is None else f"entry {position} of the conversation: "
        raise DataError(f"{where}expected a message (a dict with a role) or a Choice, got {_named(entry)}")
    content = entry.get("content")
    return cast(Message, {**entry, "content": "" if content is None else content})


def is_message_object(entry: object) -> TypeGuard[pydantic.BaseModel]:
    """Say whether an entry is a message in the form of an object, such as `response.choices[0].message`."""
    return isinstance(entry, pydantic.BaseModel) and hasattr(entry, "role")


def _check_entries(value: Any) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"expected a list of messages and Choices, got {type(value).__name__}")
    return [_check_entry(entry, position) for position, entry in enumerate(value)]


def _check_entry(entry: Any, position: int) -> Any:
    if isinstance(entry, Mapping):
        is_dumped_choice = "role" not in entry and isinstance(entry.get("message"), Mapping)
        return load_choice(entry) if is_dumped_choice else entry
    if is_choice(entry):
        return entry
    if is_message_object(entry):
        return entry.model_dump(mode="json", exclude_none=True)
    raise ValueError(f"entry {position} is neither a message nor a Choice: {_named(entry)}")


def _named(entry: object) -> str:
    name = type(entry).__name__
    return f"{name}; put in its `choices[0]`" if hasattr(entry, "choices") else name


def load_choice(dumped: Mapping[str, Any]) -> Choice:
    """Give back the Choice that was dumped, also with a finish reason that OpenAI does not know."""
    try:
        return Choice.model_validate(dumped)
    except pydantic.ValidationError:
        return Choice.construct(**dumped)


def _dump_entries(entries: list[Any], info: pydantic.SerializationInfo) -> list[Any]:
    return [
        entry.model_dump(mode=info.mode, warnings=False) if isinstance(entry, pydantic.BaseModel) else dict(entry)
        for entry in entries
    ]


def _check_tools(value: Any) -> list[Any] | None:
    if value is None:
        return None
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"expected a list of tools, got {type(value).__name__}")
    return [_check_tool(tool, position) for position, tool in enumerate(value)]


def _check_tool(tool: Any, position: int) -> Any:
    if isinstance(tool, pydantic.BaseModel):
        tool = tool.model_dump(mode="json", exclude_none=True)
    if not isinstance(tool, Mapping) or not ("type" in tool or "name" in tool):
        raise ValueError(
            f'tool {position} is neither {{"type": "function", "function": {{…}}}} nor a bare function with a name'
        )
    return tool


CheckedMessages: TypeAlias = Annotated[
    MessagesAndChoices, pydantic.PlainValidator(_check_entries), pydantic.PlainSerializer(_dump_entries)
]
CheckedTools: TypeAlias = Annotated[Tools, pydantic.PlainValidator(_check_tools), pydantic.PlainSerializer(list)]
