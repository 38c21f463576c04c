"""Masks of supervised fine-tuning, by role. Expected texts show what is trained in double brackets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from art.errors import TokenizationError
from art.preprocessing.sft import SFTBatch, tokenize_sft_batch
from art.trajectories import History, Trajectory
from tests.support.chat_templates import GEMMA, LLAMA_3, QWEN_2_5, QWEN_3, TEMPLATES, template_tokenizer
from tests.support.conversations import make_choice, make_tool_call

# Asked and asked again; a system message comes late, and the last message has no answer.
PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "5"},
    {"role": "system", "content": "Now rhyme."},
    {"role": "user", "content": "And assistant?"},
    {"role": "assistant", "content": "Alive."},
    {"role": "user", "content": "Thanks."},
]
CALL = make_tool_call("add", '{"a": 2, "b": 3}')
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
WITH_TOOLS = [
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "5", "tool_call_id": "call-1"},
    {"role": "assistant", "content": "It is 5."},
]
TOOLS_SHOWN = '# Tools\n\n<tools>\n{"type": "function", "function": {"name": "add", "parameters": {}}}\n</tools>'


def calls(name: str, arguments: str) -> list[Any]:
    """Give a question whose answer is a call."""
    return [PLAIN[1], {"role": "assistant", "content": "", "tool_calls": [make_tool_call(name, arguments)]}]


def tokenize(template: str, *conversations: Any, tools: Any = None, **options: Any) -> SFTBatch:
    rows = [Trajectory(messages_and_choices=messages, tools=tools, reward=0.0) for messages in conversations]
    return tokenize_sft_batch(rows, 1e-4, template_tokenizer(template), **options)


def shown(template: str, batch: SFTBatch) -> list[str]:
    """Spell every sequence, what is trained in double brackets."""
    tokenizer = template_tokenizer(template)
    return [
        "".join(
            f"[[{text}]]" if is_trained else text
            for is_trained, text in _runs(tokenizer, tensors["input_ids"][0], tensors["labels"][0])
        )
        for tensors in batch.trajectory_tensors
    ]


def _runs(tokenizer: Any, token_ids: torch.Tensor, labels: torch.Tensor) -> list[tuple[bool, str]]:
    runs: list[tuple[bool, list[int]]] = []
    for token, label in zip(token_ids.tolist(), labels.tolist(), strict=True):
        assert label in (token, -100)
        if not runs or runs[-1][0] != (label != -100):
            runs.append((label != -100, []))
        runs[-1][1].append(token)
    return [(is_trained, tokenizer.decode(ids)) for is_trained, ids in runs]


@pytest.mark.parametrize("name", ["chatml", "qwen-2.5"])
def test_chatml_trains_answers_and_the_end_of_their_turn(name: str) -> None:
    assert shown(TEMPLATES[name], tokenize(TEMPLATES[name], PLAIN)) == [
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n2+3?<|im_end|>\n"
        "<|im_start|>assistant\n[[5<|im_end|>]]\n"
        "<|im_start|>system\nNow rhyme.<|im_end|>\n"
        "<|im_start|>user\nAnd assistant?<|im_end|>\n"
        "<|im_start|>assistant\n[[Alive.<|im_end|>]]"
    ]


def test_llama_3() -> None:
    assert shown(LLAMA_3, tokenize(LLAMA_3, PLAIN)) == [
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n2+3?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[[5<|eot_id|>]]"
        "<|start_header_id|>system<|end_header_id|>\n\nNow rhyme.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nAnd assistant?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[[Alive.<|eot_id|>]]"
    ]


def test_gemma() -> None:
    conversation = [entry for index, entry in enumerate(PLAIN) if index != 3]
    assert shown(GEMMA, tokenize(GEMMA, conversation)) == [
        "<bos><start_of_turn>user\nBe brief.\n\n2+3?<end_of_turn>\n"
        "<start_of_turn>model\n[[5<end_of_turn>]]\n"
        "<start_of_turn>user\nAnd assistant?<end_of_turn>\n"
        "<start_of_turn>model\n[[Alive.<end_of_turn>]]"
    ]


def test_qwen_3_trains_each_answer_after_the_prompt_that_it_is_served_with() -> None:
    # The last answer is shown with its reasoning, even if there is none; an earlier one without.
    first = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
    between = "<|im_start|>system\nNow rhyme.<|im_end|>\n<|im_start|>user\nAnd assistant?<|im_end|>\n"
    assert shown(QWEN_3, tokenize(QWEN_3, PLAIN)) == [
        f"{first}[[<think>\n\n</think>\n\n5<|im_end|>]]",
        f"{first}5<|im_end|>\n{between}<|im_start|>assistant\n[[<think>\n\n</think>\n\nAlive.<|im_end|>]]",
    ]


def test_qwen_3_without_thinking_trains_the_answers_alone() -> None:
    question = "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
    batch = tokenize(QWEN_3, PLAIN[1:3], chat_template_kwargs={"enable_thinking": False})
    assert shown(QWEN_3, batch) == [f"{question}<think>\n\n</think>\n\n[[5<|im_end|>]]"]


def test_qwen_3_trains_reasoning_that_is_given() -> None:
    thought = {"role": "assistant", "content": "<think>\nTwo and three.\n</think>\n\n5"}
    assert shown(QWEN_3, tokenize(QWEN_3, [PLAIN[1], thought])) == [
        "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n[[<think>\nTwo and three.\n</think>\n\n5<|im_end|>]]"
    ]


def test_the_reasoning_of_a_choice_is_learnt_and_not_shown_later() -> None:
    first = make_choice("5", message={"reasoning_content": "Two and three."})
    question = "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
    assert shown(QWEN_3, tokenize(QWEN_3, [PLAIN[1], first, PLAIN[4], make_choice("Alive.")])) == [
        f"{question}[[<think>\nTwo and three.\n</think>\n\n5<|im_end|>]]",
        f"{question}5<|im_end|>\n<|im_start|>user\nAnd assistant?<|im_end|>\n<|im_start|>assistant\n"
        "[[<think>\n\n</think>\n\nAlive.<|im_end|>]]",
    ]


def test_qwen_2_5_trains_tool_calls_and_never_their_results() -> None:
    assert shown(QWEN_2_5, tokenize(QWEN_2_5, WITH_TOOLS, tools=TOOLS)) == [
        f"<|im_start|>system\nYou are Qwen.\n\n{TOOLS_SHOWN}<|im_end|>\n"
        "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
        '[[<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>]]\n'
        "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n[[It is 5.<|im_end|>]]"
    ]


def test_llama_3_trains_tool_calls_and_never_their_results() -> None:
    assert shown(LLAMA_3, tokenize(LLAMA_3, WITH_TOOLS)) == [
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n2+3?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '[[{"name": "add", "parameters": {"a": 2, "b": 3}}<|eot_id|>]]'
        "<|start_header_id|>tool<|end_header_id|>\n\n5<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[[It is 5.<|eot_id|>]]"
    ]


def test_qwen_3_trains_tool_calls_and_never_their_results() -> None:
    question = (
        f"<|im_start|>system\n\n{TOOLS_SHOWN}<|im_end|>\n<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
    )
    call = '\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>'
    result = "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    found = shown(QWEN_3, tokenize(QWEN_3, WITH_TOOLS, tools=TOOLS))
    assert found == [
        f"{question}[[<think>\n\n</think>\n\n{call}]]",
        f"{question}{call}\n{result}[[<think>\n\n</think>\n\nIt is 5.<|im_end|>]]",
    ]


@pytest.mark.parametrize("name", ["chatml", "llama-3", "gemma"])
def test_marks_inside_of_what_others_say_train_nothing(name: str) -> None:
    template = TEMPLATES[name]
    quoting = "Say <|im_start|>assistant\nno<|im_end|> or <start_of_turn>model\nno<end_of_turn> or no<|eot_id|>"
    batch = tokenize(template, [{"role": "user", "content": quoting}, {"role": "assistant", "content": "yes"}])
    (text,) = shown(template, batch)
    assert text.count("[[") == 1
    assert "[[yes<" in text


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_prompts_are_the_tokens_that_the_server_sees(template: str) -> None:
    tokenizer = template_tokenizer(template)
    batch = tokenize(template, PLAIN[1:3])
    (tensors,) = batch.trajectory_tensors
    prompt = tokenizer.apply_chat_template(PLAIN[1:2], add_generation_prompt=True, tokenize=True, return_dict=False)
    untrained = int((tensors["labels"] == -100).sum())
    assert tensors["input_ids"][0, :untrained].tolist() == prompt
    assert bool((tensors["labels"][0, untrained:] != -100).all())


def test_a_conversation_may_begin_with_an_answer() -> None:
    greeting = [{"role": "assistant", "content": "Hello."}, *PLAIN[1:3]]
    assert shown(LLAMA_3, tokenize(LLAMA_3, greeting)) == [
        "<|begin_of_text|><|start_header_id|>assistant<|end_header_id|>\n\n[[Hello.<|eot_id|>]]"
        "<|start_header_id|>user<|end_header_id|>\n\n2+3?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[[5<|eot_id|>]]"
    ]
    qwen = shown(QWEN_2_5, tokenize(QWEN_2_5, greeting[:1]))  # its template wants a first message in every prompt
    assert qwen == ["<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>assistant\n[[Hello.<|im_end|>]]"]


def test_reasoning_that_the_prompt_opens_and_the_answer_leaves_out() -> None:
    opening = TEMPLATES["chatml"].replace("assistant\n'", "assistant\n<think>\n'")
    assert shown(opening, tokenize(opening, PLAIN[1:3])) == [
        "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n[[5<|im_end|>]]"
    ]


def test_an_answer_that_the_template_leaves_out_is_refused() -> None:
    parts_only = TEMPLATES["chatml"].replace("m.content", "(m.content | selectattr('text') | join)")
    with pytest.raises(TokenizationError, match="trajectory 0: the chat template does not show '5'"):
        tokenize(parts_only, PLAIN[1:3])


def test_every_call_must_be_shown() -> None:
    twice = [PLAIN[1], {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}]
    assert "[[" in shown(QWEN_2_5, tokenize(QWEN_2_5, twice))[0]
    with pytest.raises(TokenizationError, match="does not show the call of 'add'"):
        tokenize(LLAMA_3, twice)  # its template shows the first call alone


def test_choices_are_messages_and_additional_histories_are_trained() -> None:
    template = TEMPLATES["chatml"]
    row = Trajectory(
        messages_and_choices=[PLAIN[1], make_choice("five")],
        additional_histories=[History(messages_and_choices=[PLAIN[4], make_choice("Alive!")])],
        reward=0.0,
    )
    batch = tokenize_sft_batch([row], 1e-4, template_tokenizer(template))
    assert shown(template, batch) == [
        "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n[[five<|im_end|>]]",
        "<|im_start|>user\nAnd assistant?<|im_end|>\n<|im_start|>assistant\n[[Alive!<|im_end|>]]",
    ]
    assert batch.num_trajectories == 1


def test_tensors_and_counts_of_a_batch() -> None:
    batch = tokenize(TEMPLATES["chatml"], PLAIN[1:3], PLAIN[1:2])
    (tensors,) = batch.trajectory_tensors
    length = tensors["input_ids"].shape[1]
    for value in tensors.values():
        assert (value.dtype, tuple(value.shape)) == (torch.int64, (1, length))
    assert bool((tensors["attention_mask"] == 1).all())
    assert (batch.learning_rate, batch.num_trajectories, batch.num_dropped_trajectories) == (1e-4, 2, 0)
    assert (batch.num_trainable_tokens, batch.num_tokens) == (2, length)  # "5" and the end of the turn


def test_too_long_ones_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    long = [PLAIN[1], {"role": "assistant", "content": "abcdefghij" * 5}]
    limit = tokenize(TEMPLATES["chatml"], long).num_tokens
    assert tokenize(TEMPLATES["chatml"], long, max_seq_length=limit).num_dropped_trajectories == 0
    batch = tokenize(TEMPLATES["chatml"], long, PLAIN[1:3], max_seq_length=limit - 1)
    assert (batch.num_dropped_trajectories, batch.num_trajectories, len(batch.trajectory_tensors)) == (1, 1, 1)
    assert f"longer than {limit - 1} tokens (the longest has {limit})" in caplog.text


def test_rows_without_an_answer_are_named(caplog: pytest.LogCaptureFixture) -> None:
    misspelt = [PLAIN[1], {"role": "assistent", "content": "5"}]
    batch = tokenize(TEMPLATES["chatml"], PLAIN[1:3], misspelt, PLAIN[:2], first_index=40)
    assert (len(batch.trajectory_tensors), batch.num_trajectories) == (1, 3)
    assert "2 trajectories hold no assistant message, first trajectory 41" in caplog.text


@pytest.mark.parametrize(
    ("messages", "complaint", "message_index"),
    [
        ([{"content": "2+3?"}, PLAIN[2]], "message 0 has no role", 0),
        ([{"role": None, "content": "2+3?"}, PLAIN[2]], "message 0 has no role", 0),
        ([{"role": "user"}, PLAIN[2]], "message 0 has no content", 0),
        ([{"role": "system", "content": None}, *PLAIN[1:3]], "message 0 has no content", 0),
        ([PLAIN[1], {"role": "assistant", "content": 5}], "message 1 has content of the type int", 1),
        ([{"role": "user", "content": {"text": "2+3?"}}, PLAIN[2]], "message 0 has content of the type dict", 0),
        ([*WITH_TOOLS[:2], {"role": "tool", "content": {"sum": 5}}], "message 2 has content of the type dict", 2),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}, PLAIN[2]], "message 0 has a part", 0),
        ([PLAIN[1], {"role": "assistant", "content": "a\ud800b"}], "half of a character, '.ud800', in ", 1),
        ([{"role": "user", "content": "a\ud800b"}, PLAIN[2]], "half of a character, '.ud800', in ", 1),
        ([PLAIN[1], {"role": "assistant", "content": "", "tool_calls": "add()"}], "message 1 has tool_calls that", 1),
        ([PLAIN[1], {"role": "assistant", "content": "", "tool_calls": {"id": "1"}}], "message 1 has tool_calls", 1),
        ([PLAIN[1], {"role": "assistant", "content": "", "tool_calls": [{}]}], "message 1 is malformed: KeyError", 1),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, PLAIN[2]],
            "message 0 holds more than text",
            0,
        ),
        ([PLAIN[1], PLAIN[1], PLAIN[2]], "roles must alternate", 2),
        (WITH_TOOLS[:2], "does not show the call of 'add'", 1),
        ([PLAIN[1], {"role": "assistant", "content": None}], "message 1 has neither content nor tool calls", 1),
        (
            [PLAIN[1], {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": "{}"}}]}],
            "message 1 calls a tool without a name",
            1,
        ),
        (calls("", "{}"), "message 1 calls a tool without a name", 1),
        (calls("add", '{"a": 2'), "message 1 calls 'add' with arguments that are no JSON object: '{\"a\": 2'", 1),
        (calls("add", "5"), "message 1 calls 'add' with arguments that are no JSON object: '5'", 1),
    ],
)
def test_broken_rows_are_refused_by_name(messages: list[Any], complaint: str, message_index: int) -> None:
    good = PLAIN[1:3]
    with pytest.raises(TokenizationError, match=f"^trajectory 11: .*{complaint}") as caught:
        tokenize(GEMMA, good, messages, first_index=10)
    assert (caught.value.trajectory_index, caught.value.message_index) == (11, message_index)
