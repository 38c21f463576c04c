"""Turn litellm's answers into OpenAI's types. Looks at shapes only, so litellm itself is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openai.types.chat.chat_completion import Choice

if TYPE_CHECKING:
    from litellm.types.utils import Choices, StreamingChoices


def convert_litellm_choice_to_openai(litellm_choice: Choices | StreamingChoices) -> Choice:
    """Convert a complete (not streamed) choice: text, function tool calls, finish reason, index and logprobs.

    Raises:
        AssertionError: The choice is a streamed one, its message is not an assistant's, a tool call is not a
            function's, or its logprobs object holds no content.
    """
    message: Any = getattr(litellm_choice, "message", None)
    assert message is not None, "a streamed choice has no message; collect the stream first"
    assert message.role == "assistant", f"the message's role is {message.role!r}, not 'assistant'"
    fields: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [_tool_call(tool_call) for tool_call in message.tool_calls]
    return Choice.model_validate(
        {
            "finish_reason": litellm_choice.finish_reason,
            "index": litellm_choice.index,
            "logprobs": _logprobs(getattr(litellm_choice, "logprobs", None)),
            "message": fields,
        }
    )


def _tool_call(tool_call: Any) -> dict[str, Any]:
    assert tool_call.type == "function", f"tool calls of type {tool_call.type!r} cannot be converted"
    function = {"name": tool_call.function.name or "", "arguments": tool_call.function.arguments}
    return {"id": tool_call.id, "type": "function", "function": function}


def _logprobs(logprobs: Any) -> dict[str, Any] | None:
    if logprobs is None:
        return None
    content = getattr(logprobs, "content", None)
    assert content is not None, "the choice has a logprobs object without content"
    return {"content": [_token(token) | {"top_logprobs": [_token(t) for t in token.top_logprobs]} for token in content]}


def _token(token: Any) -> dict[str, Any]:
    return {"token": token.token, "bytes": token.bytes, "logprob": token.logprob}
