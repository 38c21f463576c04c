"""Text that marks a user's and an assistant's turn in a model's chat template.

Training here masks by role and needs none of this; scripts and other trainers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from art.errors import ConfigurationError


@dataclass
class ModelConfig:
    """How turns begin.

    Attributes:
        instruction_part: In front of what a user says.
        response_part: In front of what the model says.
    """

    instruction_part: str
    response_part: str


MODEL_CONFIGS: dict[str, ModelConfig] = {
    "OpenPipe/Qwen3-14B-Instruct": ModelConfig(
        instruction_part="<|im_start|>user\n",
        response_part="<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
}

# A mark that a template contains, and how its turns begin; the first that fits counts.
_PARTS_BY_MARK: Mapping[str, tuple[str, str]] = {
    "<|im_start|>": ("<|im_start|>user\n", "<|im_start|>assistant\n"),
    "<|start_header_id|>": (
        "<|start_header_id|>user<|end_header_id|>\n\n",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "<start_of_turn>": ("<start_of_turn>user\n", "<start_of_turn>model\n"),
    "[INST]": ("[INST]", "[/INST]"),
}


def get_instruction_response_parts(model_id: str, tokenizer: object) -> tuple[str, str]:
    """Return how a user's and an assistant's turn begin: as listed for the model, else as its template says.

    Raises:
        ConfigurationError: The model is not listed, and its template is absent or of an unknown kind.
    """
    listed = MODEL_CONFIGS.get(model_id)
    if listed is not None:
        return listed.instruction_part, listed.response_part
    return detect_chat_template_parts(tokenizer)


def detect_chat_template_parts(tokenizer: object) -> tuple[str, str]:
    """Return how turns begin in a tokenizer's chat template.

    Raises:
        ConfigurationError: It has no template, or one of an unknown kind.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise ConfigurationError("the tokenizer has no chat template, so nothing tells where its turns begin")
    for mark, parts in _PARTS_BY_MARK.items():
        if mark in str(template):
            return parts
    known = ", ".join(_PARTS_BY_MARK)
    raise ConfigurationError(f"the chat template is of an unknown kind: it contains none of {known}")
