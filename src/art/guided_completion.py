"""Make a model repeat what a teacher said, so that its own logprobs of the teacher's answer can be had."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any, cast

from openai.types.chat import ChatCompletionToolChoiceOptionParam, ChatCompletionToolParam
from openai.types.chat.chat_completion import ChatCompletion

from art.errors import DataError


def get_guided_completion_params(
    completion: ChatCompletion, base_tools: Iterable[ChatCompletionToolParam] | None = None
) -> tuple[list[str] | None, ChatCompletionToolChoiceOptionParam | None, ChatCompletionToolParam | None]:
    """Give the arguments of a request that can only be answered as the teacher did.

    Of a teacher's answer with several tool calls only the first can be asked for.

    Args:
        completion: The teacher's answer; its first choice counts.
        base_tools: The tools that the teacher could use; needed where it called one.

    Returns:
        `(guided_choice, tool_choice, tool)`: for a text `([text], None, None)`, for a tool call None, the choice that
        forces the tool, and the tool with its parameters frozen to the teacher's.

    Raises:
        DataError: There is no choice, the tool that was called is not among `base_tools`, or its arguments are not a
            JSON object. A `ValueError` too.
    """
    if not completion.choices:
        raise DataError("the teacher's completion has no choices")
    message = completion.choices[0].message
    if not message.tool_calls:
        return [message.content or ""], None, None
    call = message.tool_calls[0]
    if call.type != "function":
        raise DataError(f"a tool call of type {call.type!r} cannot be repeated, only one of a function")
    name = call.function.name
    tool = next((tool for tool in base_tools or () if tool["function"]["name"] == name), None)
    if tool is None:
        raise DataError(
            f"the teacher called the tool {name!r}, which is not among base_tools: pass the teacher's tools"
        )
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as err:
        raise DataError(f"the arguments of the teacher's call of {name!r} are not JSON: {err}") from err
    frozen = freeze_tool_schema(cast("dict[str, Any]", tool), arguments)
    return None, {"type": "function", "function": {"name": name}}, frozen


def freeze_tool_schema(tool: dict[str, Any], fixed_args: dict[str, Any]) -> ChatCompletionToolParam:
    """Give a copy of a tool that can only be called with these arguments, in their order.

    Raises:
        DataError: The arguments are not an object; a `ValueError` too.
    """
    if not isinstance(fixed_args, dict):
        raise DataError(f"arguments of a tool call must be an object, got {fixed_args!r}")
    frozen = copy.deepcopy(tool)
    parameters = frozen["function"].get("parameters") or {}
    known = parameters.get("properties") or {}
    frozen["function"]["parameters"] = {
        **parameters,
        "type": "object",
        "properties": {
            name: {**known.get(name, {}), "const": copy.deepcopy(value)} for name, value in fixed_args.items()
        },
        "required": list(fixed_args),
        "additionalProperties": False,
    }
    return cast(ChatCompletionToolParam, frozen)
