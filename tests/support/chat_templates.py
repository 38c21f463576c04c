"""Chat templates with the structure of the public ones, and a tokenizer that knows their special tokens.

Written down for tests: what each shows of a conversation, in which order, with which marks.
"""

from __future__ import annotations

import functools
from typing import Any

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
)

CHATML = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Every role has its header; contents are trimmed; the sequence begins with a token of its own.
LLAMA_3 = (
    "{{- '<|begin_of_text|>' }}"
    "{%- for m in messages %}"
    "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{%- if m.tool_calls %}"
    '{{- \'{"name": "\' + m.tool_calls[0].function.name + \'", "parameters": \' }}'
    "{{- m.tool_calls[0].function.arguments | tojson }}{{- '}' }}"
    "{%- else %}{{- m.content | trim }}{% endif %}"
    "{{- '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

# The assistant is called model; roles must alternate, and a system message joins the first question.
GEMMA = (
    "{{ '<bos>' }}"
    "{%- set ns = namespace(system='') %}"
    "{%- if messages and messages[0].role == 'system' %}{% set ns.system = messages[0].content + '\n\n' %}"
    "{%- set messages = messages[1:] %}{% endif %}"
    "{%- for m in messages %}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{{- (ns.system if loop.first else '') + m.content | trim + '<end_of_turn>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

_QWEN_TOOLS = "{{- '\n\n# Tools\n\n<tools>' }}{% for t in tools %}{{ '\n' + t | tojson }}{% endfor %}{{ '\n</tools>' }}"
_QWEN_CALLS = (
    "{%- for call in m.tool_calls or [] %}"
    '{{- \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}"
    "{%- endfor %}"
)
_QWEN_TOOL_RESULT = (
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
)

# A system message of its own where there is none; tool results are shown inside a user's turn.
QWEN_2_5 = (
    "{{- '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}{{ 'You are Qwen.' }}{% endif %}"
    "{%- if tools %}" + _QWEN_TOOLS + "{% endif %}{{- '<|im_end|>\n' }}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' or m.role == 'system' and not loop.first %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- elif m.role == 'assistant' %}"
    "{{- '<|im_start|>assistant' }}{% if m.content or not m.tool_calls %}{{ '\n' + m.content }}{% endif %}"
    + _QWEN_CALLS
    + "{{- '<|im_end|>\n' }}{%- elif m.role == 'tool' %}"
    + _QWEN_TOOL_RESULT
    + "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Answers to the newest question show their reasoning, an empty one too if they come last; earlier ones never do.
QWEN_3 = (
    "{%- if tools %}{{ '<|im_start|>system' }}" + _QWEN_TOOLS + "{{ '<|im_end|>\n' }}"
    "{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- set ns = namespace(question=-1) %}"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set ns.question = loop.index0 %}{% endif %}{% endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' or m.role == 'system' and not loop.first %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- elif m.role == 'assistant' %}"
    "{%- set said = m.content.split('</think>')[-1].lstrip('\n') %}"
    "{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n')"
    " if '</think>' in m.content else (m.reasoning_content or '') %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > ns.question and (loop.last or thought) %}"
    "{{- '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}"
    "{{- said }}" + _QWEN_CALLS + "{{- '<|im_end|>\n' }}"
    "{%- elif m.role == 'tool' %}" + _QWEN_TOOL_RESULT + "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)

TEMPLATES = {"chatml": CHATML, "llama-3": LLAMA_3, "gemma": GEMMA, "qwen-2.5": QWEN_2_5, "qwen-3": QWEN_3}


def template_tokenizer(chat_template: str) -> Any:
    """Make a byte-level tokenizer with the special tokens of all templates here."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_byte_level(),
        eos_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
        model_max_length=100_000,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


@functools.cache
def _byte_level() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL_TOKENS),
    )
    tokenizer.train_from_iterator(["\n\n the answer is user assistant system model tool "] * 20, trainer)
    return tokenizer
