"""Masks of supervised fine-tuning under the public templates themselves, as TRL ships them. What is trained stands in
double brackets."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from art.errors import TokenizationError
from art.preprocessing.sft import tokenize_sft_batch
from art.trajectories import Trajectory
from tests.support.chat_templates import template_tokenizer
from tests.support.conversations import make_tool_call

PLAIN: list[Any] = [
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "And assistant?"},
    {"role": "assistant", "content": "Alive."},
    {"role": "user", "content": "Thanks."},
]
WITH_TOOLS: list[Any] = [
    PLAIN[0],
    {"role": "assistant", "content": None, "tool_calls": [make_tool_call("add", '{"a": 2, "b": 3}')]},
    {"role": "tool", "content": "5", "tool_call_id": "call-1"},
    {"role": "assistant", "content": "It is 5."},
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}]

CHATML = (
    "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n[[5<|im_end|>]]\n"
    "<|im_start|>user\nAnd assistant?<|im_end|>\n<|im_start|>assistant\n[[Alive.<|im_end|>]]"
)
LLAMA = (
    "<|start_header_id|>user<|end_header_id|>\n\n2+3?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n[[5<|eot_id|>]]"
    "<|start_header_id|>user<|end_header_id|>\n\nAnd assistant?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n[[Alive.<|eot_id|>]]"
)
GEMMA = (
    "<bos><start_of_turn>user\n2+3?<end_of_turn>\n<start_of_turn>model\n[[5<end_of_turn>]]\n"
    "<start_of_turn>user\nAnd assistant?<end_of_turn>\n<start_of_turn>model\n[[Alive.<end_of_turn>]]"
)
THOUGHT = "<think>\n\n</think>\n\n"
# Qwen 3 shows the reasoning of the newest answer only, so that each answer has a sequence of its own.
QWEN_3 = [
    f"<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n[[{THOUGHT}5<|im_end|>]]",
    "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n"
    f"<|im_start|>user\nAnd assistant?<|im_end|>\n<|im_start|>assistant\n[[{THOUGHT}Alive.<|im_end|>]]",
]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>'
ASKED = "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
RESULT = "\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
LLAMA_TOOLS = (
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
    '[[{"name": "add", "parameters": {"a": 2, "b": 3}}<|eot_id|>]]'
    '<|start_header_id|>ipython<|end_header_id|>\n\n"5"<|eot_id|>'
    "<|start_header_id|>assistant<|end_header_id|>\n\n[[It is 5.<|eot_id|>]]"
)


def read_template(name: str) -> str:
    found = importlib.util.find_spec("trl")
    path = Path(found.origin or "").parent / "chat_templates" / f"{name}.jinja" if found else Path()
    if not path.is_file():
        pytest.skip(f"this release of TRL has no template {name}")
    return path.read_text(encoding="utf-8")


def shown(name: str, messages: list[Any], tools: Any = None) -> list[str]:
    """Spell every sequence of a conversation."""
    tokenizer = template_tokenizer(read_template(name))
    tokenizer.bos_token = "<bos>" if name.startswith("gemma") else "<|begin_of_text|>"
    row = Trajectory(messages_and_choices=messages, tools=tools, reward=0.0)
    spelt = []
    for tensors in tokenize_sft_batch([row], 1e-4, tokenizer).trajectory_tensors:
        text, token_ids, was_trained = "", tensors["input_ids"][0].tolist(), False
        pending: list[int] = []
        for token, label in zip(token_ids, tensors["labels"][0].tolist(), strict=True):
            if (label != -100) != was_trained:
                text += tokenizer.decode(pending) + ("]]" if was_trained else "[[")
                pending, was_trained = [], not was_trained
            pending.append(token)
        spelt.append(text + tokenizer.decode(pending) + ("]]" if was_trained else ""))
    return spelt


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen2_5", [CHATML]),
        ("qwen3_instruct_2507", [CHATML]),
        ("qwen3", QWEN_3),
        ("llama3", [LLAMA]),
        ("llama3_1", [LLAMA]),
        ("llama3_2", [LLAMA]),
        ("gemma", [GEMMA]),
        ("gemma3", [GEMMA]),
    ],
)
def test_answers_and_the_end_of_their_turn_are_trained(name: str, expected: list[str]) -> None:
    found = shown(name, PLAIN)
    assert [text[-len(wanted) :] for text, wanted in zip(found, expected, strict=True)] == expected
    # What some templates put before the first question, a system message of their own, is not trained.
    assert [text.count("[[") for text in found] == [wanted.count("[[") for wanted in expected]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen2_5", [f"{ASKED}[[{CALL}]]{RESULT}[[It is 5.<|im_end|>]]"]),
        ("qwen3_instruct_2507", [f"{ASKED}[[{CALL}]]{RESULT}[[It is 5.<|im_end|>]]"]),
        (
            "qwen3",
            [f"{ASKED}[[{THOUGHT}{CALL}]]", f"{ASKED}{CALL}{RESULT}[[{THOUGHT}It is 5.<|im_end|>]]"],
        ),
        ("llama3_1", [LLAMA_TOOLS]),
        ("llama3_2", [LLAMA_TOOLS]),
    ],
)
def test_calls_are_trained_and_never_their_results(name: str, expected: list[str]) -> None:
    found = shown(name, WITH_TOOLS, TOOLS)
    assert [text[-len(wanted) :] for text, wanted in zip(found, expected, strict=True)] == expected
    assert [text.count("[[") for text in found] == [wanted.count("[[") for wanted in expected]


@pytest.mark.parametrize("name", ["llama3", "gemma", "gemma3"])
def test_templates_that_show_no_calls_are_refused_them(name: str) -> None:
    with pytest.raises(TokenizationError, match="does not show the call of 'add'"):
        shown(name, WITH_TOOLS[:2], TOOLS)


def test_a_template_that_takes_no_system_message_is_refused_one() -> None:
    with pytest.raises(TokenizationError, match=r"trajectory 0: .*System role not supported"):
        shown("gemma", [{"role": "system", "content": "Be brief."}, *PLAIN])
