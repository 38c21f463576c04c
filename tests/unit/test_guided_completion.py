from __future__ import annotations

import copy
from typing import Any

import pytest
from openai.types.chat.chat_completion import ChatCompletion

from art.guided_completion import freeze_tool_schema, get_guided_completion_params
from tests.support.conversations import make_choice, make_tool_call

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Move a piece.",
        "parameters": {
            "type": "object",
            "properties": {
                "piece": {"type": "string", "description": "Which."},
                "steps": {"type": "integer"},
                "fast": {"type": "boolean"},
            },
            "required": ["piece"],
        },
    },
}


def completion(*calls: dict[str, Any], text: str | None = None) -> ChatCompletion:
    message = {"tool_calls": list(calls)} if calls else {}
    choice = make_choice(text, message=message)
    return ChatCompletion(id="c", choices=[choice], created=7, model="teacher", object="chat.completion")


def test_text_can_only_be_repeated() -> None:
    assert get_guided_completion_params(completion(text="yes")) == (["yes"], None, None)
    assert get_guided_completion_params(completion(text=None), [TOOL]) == ([""], None, None)


def test_tool_call_is_forced_with_the_arguments_of_the_teacher() -> None:
    before = copy.deepcopy(TOOL)
    other: Any = {"type": "function", "function": {"name": "look"}}
    call = make_tool_call("move", '{"steps": 2, "piece": "rook"}')
    guided, tool_choice, tool = get_guided_completion_params(completion(call), iter([other, TOOL]))
    assert guided is None
    assert tool_choice == {"type": "function", "function": {"name": "move"}}
    assert tool == {
        "type": "function",
        "function": {
            "name": "move",
            "description": "Move a piece.",
            "parameters": {
                "type": "object",
                "properties": {
                    "steps": {"type": "integer", "const": 2},
                    "piece": {"type": "string", "description": "Which.", "const": "rook"},
                },
                "required": ["steps", "piece"],
                "additionalProperties": False,
            },
        },
    }
    assert list(tool["function"]["parameters"]["properties"]) == ["steps", "piece"]  # type: ignore[call-overload]
    assert before == TOOL


def test_arguments_that_the_schema_does_not_know_are_frozen_too() -> None:
    tool: Any = freeze_tool_schema({"type": "function", "function": {"name": "look"}}, {"at": {"x": [1]}})
    assert tool["function"]["parameters"]["properties"] == {"at": {"const": {"x": [1]}}}


@pytest.mark.parametrize(
    ("call", "tools", "complaint"),
    [
        (make_tool_call("move"), None, "'move', which is not among base_tools"),
        (make_tool_call("fly"), [TOOL], "'fly'"),
        (make_tool_call("move", "{broken"), [TOOL], "not JSON"),
        (make_tool_call("move", "[1]"), [TOOL], "must be an object"),
    ],
)
def test_call_that_cannot_be_repeated_is_a_value_error(call: dict[str, Any], tools: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        get_guided_completion_params(completion(call), tools)


def test_completion_without_choices_is_a_value_error() -> None:
    empty = completion(text="x").model_copy(update={"choices": []})
    with pytest.raises(ValueError, match="no choices"):
        get_guided_completion_params(empty)
