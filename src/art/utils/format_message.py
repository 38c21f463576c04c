"""Show a message to a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art.types import Message


def format_message(message: Message) -> str:
    """Write a message as its role, its content, and a line for each tool call.

    A refusal stands in for missing content. Of content in parts the texts are shown, and the type of other parts in
    square brackets.
    """
    fields: Mapping[str, Any] = message
    content = _text(fields.get("content") or fields.get("refusal") or "")
    calls = [_format_call(call) for call in fields.get("tool_calls") or []]
    body = "\n".join([content, *calls] if content else calls)
    return f"{str(fields['role']).capitalize()}:\n{body}"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if "text" in part else f"[{part.get('type')}]" for part in content)


def _format_call(call: Mapping[str, Any]) -> str:
    function = call.get("function") or call.get("custom") or {}
    return f"{function.get('name')}({function.get('arguments', function.get('input', ''))})"
