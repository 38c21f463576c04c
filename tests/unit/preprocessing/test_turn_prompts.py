"""Prompts of many turns: found with few renderings, and the same as when each one is rendered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.preprocessing import turn_prompts
from art.preprocessing.chat import ChatRenderer
from art.preprocessing.token_sequence import sequences_of
from tests.support.tokenizers import (
    CHATML,
    THINK_TEMPLATE,
    TOOLS_TEMPLATE,
    answer,
    bpe_tokenizer,
    sampled_choice,
    server_prompt,
    spell,
)

# Tools stand before the newest question only.
TOOLS_LATE_TEMPLATE = (
    "{%- for m in messages %}{% set later = messages[loop.index:] | selectattr('role', 'equalto', 'user') | list %}"
    "{%- if tools and m.role == 'user' and not later %}[{{ tools | tojson }}]{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {
    "chatml": bpe_tokenizer(CHATML),
    "tools": bpe_tokenizer(TOOLS_TEMPLATE),
    "think": bpe_tokenizer(THINK_TEMPLATE),
    "tools late": bpe_tokenizer(TOOLS_LATE_TEMPLATE),
}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


class CountingRenderer(ChatRenderer):
    """Counts how many messages were rendered."""

    rendered_messages = 0

    def prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        self.rendered_messages += len(messages)
        return super().prompt(messages, tools)


def _token_ids(tokenizer: Any, entries: list[Any], tools: Any = None) -> list[list[int]]:
    return [sequence.token_ids for sequence in sequences_of(entries, tools, ChatRenderer(tokenizer), None, False)]


def _entry(tokenizer: Any, kind: str, text: str) -> Any:
    if kind == "sampled":
        return answer(tokenizer, text)
    if kind == "cut off":
        return sampled_choice(spell(tokenizer, text), text)
    if kind == "reasoned":
        return answer(tokenizer, f"<think>\nsay\n</think>\n\n{text}")
    if kind == "stripped":
        return answer(tokenizer, f"{text} \n", content=text)
    if kind == "calls":
        arguments = '{"no":"maybe"}'
        calls = [{"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}]
        sampled = f'{text}\n<tool_call>\n{{"name":"look", "arguments":{arguments}}}\n</tool_call>'
        return answer(tokenizer, sampled, content=text, tool_calls=calls)
    return {"role": kind, "content": text}


KINDS = st.sampled_from(["sampled", "cut off", "reasoned", "stripped", "calls", "user", "tool", "assistant"])
TEXTS = st.sampled_from(["yes", "no maybe", "say\nthe word", " yes", "", "<|im_start|>assistant\n", "</think>"])


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=30, deadline=None)
@given(turns=st.lists(st.tuples(KINDS, TEXTS), min_size=8, max_size=20))
def test_few_renderings_give_what_rendering_every_prompt_gives(name: str, turns: list[tuple[str, str]]) -> None:
    tokenizer = TEMPLATES[name]
    entries = [{"role": "user", "content": "say"}, *(_entry(tokenizer, *turn) for turn in turns)]
    from_few = _token_ids(tokenizer, entries, TOOLS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turn_prompts, "MIN_TURNS_FOR_SHARED_RENDERING", 10**9)
        from_all = _token_ids(tokenizer, entries, TOOLS)
    assert from_few == from_all


@pytest.mark.parametrize("num_turns", [64, 256])
@pytest.mark.parametrize("name", ["chatml", "tools", "think"])
def test_rendering_work_grows_linearly_with_the_history(name: str, num_turns: int) -> None:
    tokenizer = TEMPLATES[name]
    kind = "calls" if name == "tools" else "sampled"
    entries = [
        entry
        for _ in range(num_turns)
        for entry in ({"role": "user", "content": "say the word"}, _entry(tokenizer, kind, "yes"))
    ]
    renderer = CountingRenderer(tokenizer)
    [sequence] = sequences_of(entries, None, renderer, None, False)
    assert sequence.num_trained == num_turns * (len(entries[1].logprobs.content))
    assert renderer.rendered_messages < 5 * len(entries)


@pytest.mark.parametrize("num_turns", [2, 8])
def test_template_that_moves_earlier_text_gives_each_turn_its_own_prompt(num_turns: int) -> None:
    tokenizer = TEMPLATES["tools late"]
    entries: list[Any] = []
    messages: list[dict[str, Any]] = []
    expected = []
    for number in range(num_turns):
        question, text = {"role": "user", "content": f"say {number}"}, f"yes {number}"
        entries += [question, answer(tokenizer, text)]
        expected.append(
            [*server_prompt(tokenizer, [*messages, question], TOOLS), *spell(tokenizer, text), tokenizer.eos_token_id]
        )
        messages += [question, {"role": "assistant", "content": text}]
    assert _token_ids(tokenizer, entries, TOOLS) == expected
    assert len(_token_ids(tokenizer, entries)) == 1


def test_reasoning_within_one_question_and_across_two() -> None:
    tokenizer = TEMPLATES["think"]
    kinds = ["user", *["reasoned", "tool"] * 4, "reasoned", "user", *["reasoned", "tool"] * 3, "reasoned"]
    entries = [_entry(tokenizer, kind, f"say {number}") for number, kind in enumerate(kinds)]
    texts = [tokenizer.decode(ids) for ids in _token_ids(tokenizer, entries)]
    assert [text.count("<think>") for text in texts] == [5, 4]
    assert [text.count("say") for text in texts] == [1 + 4 + 5 * 2, 1 + 4 + 5 + 1 + 3 + 4 * 2]


def test_text_that_looks_like_the_placeholder_is_no_trouble() -> None:
    tokenizer = TEMPLATES["chatml"]
    question = {"role": "user", "content": "placeholderofaturn placeholderofaturnx"}
    entries = [question, _entry(tokenizer, "cut off", "placeholderofaturn")] * 2
    assert len(_token_ids(tokenizer, entries)) == 1
