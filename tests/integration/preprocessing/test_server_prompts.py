"""Training prompts equal those that vLLM makes of the same conversation (its own code, no engine)."""

from __future__ import annotations

from typing import Any

import pytest

from art.preprocessing.chat import ChatRenderer
from tests.support.tokenizers import CHATML, THINK_TEMPLATE, TOOLS_TEMPLATE, bpe_tokenizer

pytestmark = pytest.mark.integration

PARTS_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}({{ part.text }}){% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REASONING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "é", "n": 1.0}'}}
EMPTY_CALL = {"id": "c2", "type": "function", "function": {"name": "look", "arguments": ""}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "plain": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "three"}]},
        {"role": "user", "content": "U"},
    ],
    "calls": [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, EMPTY_CALL]},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "R"}, {"type": "text", "text": "T"}],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "R"},
    ],
    "no calls": [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A", "tool_calls": []},
        {"role": "user", "content": "V", "name": "Eve"},
    ],
    "reasoning": [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A", "reasoning": "because"},
        {"role": "user", "content": "V"},
    ],
    "think": [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "<think>\nbecause\n</think>\n\nA"},
        {"role": "user", "content": "V"},
    ],
}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"strict": True, "description": "D", "name": "find"}},
]


class NoImages:
    """Stands for vLLM's tracker of images in a conversation without any."""

    def create_parser(self, *_: Any, **__: Any) -> NoImages:
        return self

    def mm_placeholder_storage(self) -> dict[str, list[Any]]:
        return {}

    def parse_text(self, *_: Any) -> None:
        raise AssertionError("text is no image")


def _prompt_of_vllm(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    from vllm.entrypoints import chat_utils
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
    from vllm.renderers import hf

    content_format = hf._detect_content_format(tokenizer.chat_template, default="string")
    conversation = [
        parsed
        for message in messages
        for parsed in chat_utils._parse_chat_message_content(message, NoImages(), content_format, False)
    ]
    chat_utils._postprocess_messages(conversation)
    dumped = [ChatCompletionToolsParam.model_validate(tool).model_dump() for tool in tools]
    return str(
        tokenizer.apply_chat_template(conversation, tools=dumped or None, tokenize=False, add_generation_prompt=True)
    )


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize(
    "template",
    [CHATML, TOOLS_TEMPLATE, THINK_TEMPLATE, PARTS_TEMPLATE, REASONING_TEMPLATE],
    ids=["chatml", "tools", "think", "parts", "reasoning"],
)
def test_prompt_equals_that_of_vllm(template: str, conversation: str, tools: list[dict[str, Any]]) -> None:
    pytest.importorskip("vllm")
    tokenizer = bpe_tokenizer(template)
    messages = CONVERSATIONS[conversation]
    renderer = ChatRenderer(tokenizer, None, "vllm_openai")
    found = renderer.prompt(renderer.messages(messages), renderer.tools(tools))
    expected = _prompt_of_vllm(tokenizer, messages, tools)
    if template == PARTS_TEMPLATE:  # vLLM gives text to such templates as a part, we as text
        found, expected = (text.replace("(", "").replace(")", "") for text in (found, expected))
    assert found == expected
