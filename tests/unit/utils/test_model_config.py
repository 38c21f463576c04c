from __future__ import annotations

from types import SimpleNamespace

import pytest

from art.utils.model_config import (
    MODEL_CONFIGS,
    ModelConfig,
    detect_chat_template_parts,
    get_instruction_response_parts,
)
from tests.support.chat_templates import TEMPLATES

CHATML = ("<|im_start|>user\n", "<|im_start|>assistant\n")
LLAMA = ("<|start_header_id|>user<|end_header_id|>\n\n", "<|start_header_id|>assistant<|end_header_id|>\n\n")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TEMPLATES["chatml"], CHATML),
        (TEMPLATES["qwen-3"], CHATML),
        (TEMPLATES["llama-3"], LLAMA),
        (TEMPLATES["gemma"], ("<start_of_turn>user\n", "<start_of_turn>model\n")),
        ("{{ '[INST] ' + messages[0].content + ' [/INST]' }}", ("[INST]", "[/INST]")),
        ("<start_of_turn> or <|start_header_id|>", LLAMA),
    ],
)
def test_parts_are_told_by_the_template(template: str, expected: tuple[str, str]) -> None:
    assert get_instruction_response_parts("org/model", SimpleNamespace(chat_template=template)) == expected


def test_a_listed_model_needs_no_template() -> None:
    listed = ModelConfig(CHATML[0], "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert {"OpenPipe/Qwen3-14B-Instruct": listed} == MODEL_CONFIGS
    parts = get_instruction_response_parts("OpenPipe/Qwen3-14B-Instruct", object())
    assert parts == (CHATML[0], "<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize(("template", "complaint"), [(None, "no chat template"), ("{{ messages }}", "unknown kind")])
def test_what_tells_nothing_is_refused(template: str | None, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        detect_chat_template_parts(SimpleNamespace(chat_template=template))
