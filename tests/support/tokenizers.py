"""Tokenizers made on the spot, chat templates, and answers with sampled token ids."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai.types.chat.chat_completion import Choice

GOLDEN_DIR = Path(__file__).parent.parent / "golden"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Tools in front, tool calls after the content, arguments as JSON.
TOOLS_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%- for call in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{%- endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Reasoning is shown only in answers after the newest question; without thinking, an empty block is put in front.
THINK_TEMPLATE = (
    "{%- set ns = namespace(question=0) %}"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set ns.question = loop.index0 %}{% endif %}{% endfor %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{%- if m.role == 'assistant' and '</think>' in m.content and loop.index0 < ns.question %}"
    "{{- m.content.split('</think>')[-1].lstrip('\n') }}"
    "{%- else %}{{- m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


def load_golden(name: str) -> Any:
    """Read a golden file."""
    return json.loads((GOLDEN_DIR / name).read_text(encoding="utf-8"))


def toy_tokenizer() -> Any:
    """Make the tokenizer that the golden files were made with: a token for each character."""
    spec = importlib.util.spec_from_file_location("toy_tokenizer", GOLDEN_DIR / "toy_tokenizer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ToyTokenizer()


def bpe_tokenizer(chat_template: str = CHATML) -> Any:
    """Train a small byte-level BPE tokenizer."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_trained_bpe(),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=100_000,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


@functools.cache
def _trained_bpe() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(["yes no maybe say the word user assistant system "] * 50, trainer)
    return tokenizer


def spell(tokenizer: Any, text: str) -> list[int]:
    """Give ids of a text as no tokenizer would: one for each byte."""
    return [token for character in text for token in tokenizer.encode(character, add_special_tokens=False)]


def sampled_choice(
    ids: Sequence[int], content: str | None, *, logprob: float = -0.5, tool_calls: list[dict[str, Any]] | None = None
) -> Choice:
    """Make an answer as the server reports it, with these sampled ids."""
    entries = [{"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []} for token in ids]
    return Choice.model_validate(
        {
            "finish_reason": "stop",
            "index": 0,
            "logprobs": {"content": entries},
            "message": {"role": "assistant", "content": content, "tool_calls": tool_calls},
        }
    )


def answer(tokenizer: Any, text: str, **fields: Any) -> Choice:
    """Make an answer whose ids spell the text byte by byte, with the end token."""
    fields.setdefault("content", text)
    return sampled_choice([*spell(tokenizer, text), tokenizer.eos_token_id], **fields)


def server_prompt(tokenizer: Any, messages: list[Any], tools: list[Any] | None = None, **kwargs: Any) -> list[int]:
    """Give the ids that a server feeds its model for a request."""
    ids = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=True, **kwargs)
    return list(ids if isinstance(ids, list) else ids["input_ids"])
