from __future__ import annotations

from typing import Any

import pytest

from art.utils.format_message import format_message
from tests.support.conversations import make_tool_call


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "user", "content": "hello"}, "User:\nhello"),
        ({"role": "assistant", "content": None}, "Assistant:\n"),
        ({"role": "assistant", "content": None, "refusal": "no"}, "Assistant:\nno"),
        (
            {"role": "assistant", "content": "see", "tool_calls": [make_tool_call(), make_tool_call("go", '{"x":1}')]},
            'Assistant:\nsee\nlook({})\ngo({"x":1})',
        ),
        ({"role": "assistant", "content": "", "tool_calls": [make_tool_call()]}, "Assistant:\nlook({})"),
        (
            {"role": "user", "content": [{"type": "text", "text": "what is this?"}, {"type": "image_url"}]},
            "User:\nwhat is this?\n[image_url]",
        ),
    ],
)
def test_message_is_shown(message: Any, text: str) -> None:
    assert format_message(message) == text
