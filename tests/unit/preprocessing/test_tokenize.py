"""Tokenizing conversations: sampled ids stay as they are, everything else is what the server saw."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from art.errors import ListContentError, TokenizationError
from art.preprocessing.tokenize import TokenizedResult, tokenize_trajectory, tokenize_trajectory_groups
from art.trajectories import History, Trajectory, TrajectoryGroup
from tests.support.tokenizers import (
    THINK_TEMPLATE,
    TOOLS_TEMPLATE,
    answer,
    bpe_tokenizer,
    sampled_choice,
    server_prompt,
    spell,
    toy_tokenizer,
)

BPE = bpe_tokenizer()
BPE_TOOLS = bpe_tokenizer(TOOLS_TEMPLATE)
BPE_THINK = bpe_tokenizer(THINK_TEMPLATE)
END = BPE.eos_token_id


def tokenize(tokenizer: Any, entries: list[Any], *, tools: Any = None, allow: bool = False, **kwargs: Any) -> Any:
    history = History(messages_and_choices=entries, tools=tools)
    return tokenize_trajectory(tokenizer, None, history, 1.0, allow, Trajectory(), **kwargs)


def tokenize_alone(tokenizer: Any, entries: list[Any], **kwargs: Any) -> list[TokenizedResult]:
    trajectory = Trajectory(messages_and_choices=entries, reward=1.0)
    return list(
        tokenize_trajectory_groups(
            tokenizer,
            [TrajectoryGroup([trajectory])],
            False,
            False,
            shuffle_group_trajectories=False,
            drop_zero_advantage_trajectories=False,
            **kwargs,
        )
    )


def trained_part(result: TokenizedResult) -> list[int]:
    return [token for token, mask in zip(result.token_ids, result.assistant_mask, strict=True) if mask]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def call(arguments: str, name: str = "look") -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


# Sampled ids ------------------------------------------------------------------------------------------------


def test_sampled_ids_follow_the_prompt_that_the_server_saw() -> None:
    ids = [*spell(BPE, "maybe"), END]
    assert ids[:-1] != BPE.encode("maybe", add_special_tokens=False)
    result = tokenize(BPE, [user("say the word"), sampled_choice(ids, "maybe")])
    assert result.token_ids == [*server_prompt(BPE, [user("say the word")]), *ids]
    assert trained_part(result) == ids


def test_every_turn_follows_its_own_prompt_and_keeps_its_ids() -> None:
    entries = [
        user("say yes"),
        answer(BPE, "yes"),
        user("say no"),
        answer(BPE, "no"),
        user("say maybe"),
        answer(BPE, "maybe"),
    ]
    texts = ["say yes", "yes", "say no", "no", "say maybe"]
    messages = [assistant(text) if index % 2 else user(text) for index, text in enumerate(texts)]
    result = tokenize(BPE, entries)
    assert trained_part(result) == [*spell(BPE, "yes"), END, *spell(BPE, "no"), END, *spell(BPE, "maybe"), END]
    # With each sampled turn written as the tokenizer would write it, the context is the last prompt.
    as_text = list(result.token_ids)
    for text in ("yes", "no"):
        spelled = [*spell(BPE, text), END]
        start = next(i for i in range(len(as_text)) if as_text[i : i + len(spelled)] == spelled)
        as_text[start : start + len(spelled)] = [*BPE.encode(text, add_special_tokens=False), END]
    assert as_text == [*server_prompt(BPE, messages), *spell(BPE, "maybe"), END]
    assert result.input_pos == list(range(len(result.token_ids)))


def test_logprobs_stand_beside_their_tokens() -> None:
    choice = sampled_choice([5, 6, END], "x")
    for entry, logprob in zip(choice.logprobs.content, (-1.0, -2.0, -3.0), strict=True):
        entry.logprob = logprob
    result = tokenize(BPE, [user("yes"), choice])
    assert result.logprobs[-3:] == [-1.0, -2.0, -3.0]
    assert all(math.isnan(logprob) for logprob in result.logprobs[:-3])


def test_template_end_of_turn_stays_where_none_was_sampled() -> None:
    cut_off = sampled_choice(spell(BPE, "maybe no"), "maybe no")
    result = tokenize(BPE, [user("yes"), cut_off, user("no"), answer(BPE, "yes")])
    prompt = server_prompt(BPE, [user("yes")])
    rest = BPE.encode("<|im_end|>\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
    assert result.token_ids == [*prompt, *spell(BPE, "maybe no"), *rest, *spell(BPE, "yes"), END]
    assert trained_part(result) == [*spell(BPE, "maybe no"), *spell(BPE, "yes"), END]


def test_first_token_may_be_half_a_character() -> None:
    ids = [*BPE.encode("é", add_special_tokens=False), END]
    assert len(ids) == 3  # two bytes
    entries = [user("yes"), sampled_choice(ids, "é"), user("no"), answer(BPE, "no")]
    assert trained_part(tokenize(BPE, entries))[:3] == ids
    broken = sampled_choice(ids[1:], "\ufffd")
    assert trained_part(tokenize(BPE, [user("yes"), broken, user("no"), answer(BPE, "no")]))[:2] == ids[1:]


@pytest.mark.parametrize("text", [":5", "token_id:", "token_id:x", "id:5", "xtoken_id:5"])
def test_only_the_full_prefix_makes_a_token_id(text: str) -> None:
    toy = toy_tokenizer()
    choice = sampled_choice([65], "A")
    choice.logprobs.content[0].token = text
    assert trained_part(tokenize(toy, [user("U"), choice])) == [ord(text[0])]


def test_text_of_a_byte_level_token_is_found(caplog: pytest.LogCaptureFixture) -> None:
    choice = sampled_choice([0, 0, 0, 0], " word")
    for entry, text in zip(choice.logprobs.content, (" word", "<|im_end|>", "", "no such token"), strict=True):
        entry.token = text
    [word] = BPE.encode(" word", add_special_tokens=False)
    assert trained_part(tokenize(BPE, [user("yes"), choice])) == [word, END, END, END]
    assert "2 of 4 sampled tokens are not in the tokenizer's vocabulary" in caplog.text


def test_refusal_logprobs_count_as_sampled() -> None:
    choice = sampled_choice([7, END], "no")
    choice.logprobs.refusal, choice.logprobs.content = choice.logprobs.content, None
    assert trained_part(tokenize(BPE, [user("yes"), choice])) == [7, END]


# Turns that are context --------------------------------------------------------------------------------------


def test_messages_after_the_last_trained_turn_are_cut() -> None:
    entries = [user("yes"), answer(BPE, "no")]
    assert tokenize(BPE, [*entries, user("maybe"), assistant("yes")]).token_ids == tokenize(BPE, entries).token_ids


def test_only_plain_assistant_messages_train_nothing() -> None:
    assert tokenize(BPE, [user("yes"), assistant("no")]) is None


def test_choice_with_an_empty_logprob_list_is_context() -> None:
    silent = sampled_choice([], "yes")
    result = tokenize(BPE, [user("no"), silent, user("word"), answer(BPE, "maybe")])
    assert result.token_ids == [
        *server_prompt(BPE, [user("no"), assistant("yes"), user("word")]),
        *spell(BPE, "maybe"),
        END,
    ]


def test_plain_assistant_turn_keeps_its_tool_calls() -> None:
    entries = [user("yes"), assistant("word", tool_calls=[call('{"no": 1}')]), user("no"), answer(BPE_TOOLS, "maybe")]
    result = tokenize(BPE_TOOLS, entries)
    text = "".join(result.tokens)
    assert '<tool_call>\n{"name": "look", "arguments": {"no": 1}}\n</tool_call><|im_end|>' in text
    as_server = assistant("word", tool_calls=[{**call(""), "function": {"name": "look", "arguments": {"no": 1}}}])
    assert result.token_ids == [
        *server_prompt(BPE_TOOLS, [user("yes"), as_server, user("no")]),
        *spell(BPE_TOOLS, "maybe"),
        END,
    ]


@pytest.mark.parametrize(
    ("tokenizer", "role", "text"),
    [(toy_tokenizer(), "user", "yesno"), (toy_tokenizer(), "tool", "yes\nno"), (BPE, "user", "yes\nno")],
)
def test_text_parts_suit_the_template(tokenizer: Any, role: str, text: str) -> None:
    parts = {"role": role, "content": [{"type": "text", "text": "yes"}, {"type": "text", "text": "no"}]}
    result = tokenize(tokenizer, [parts, answer(tokenizer, "A")])
    assert "".join(result.tokens).startswith(f"<|im_start|>{role}\n{text}<|im_end|>\n")


def test_text_is_trained_if_allowed_but_not_the_template_around_it() -> None:
    result = tokenize(BPE, [user("yes"), assistant("say no"), user("word"), answer(BPE, "maybe")], allow=True)
    assert trained_part(result) == [*BPE.encode("say no", add_special_tokens=False), *spell(BPE, "maybe"), END]
    messages = [user("yes"), assistant("say no"), user("word")]
    assert result.token_ids == [*server_prompt(BPE, messages), *spell(BPE, "maybe"), END]


def test_template_end_of_turn_follows_text_that_ends_like_it() -> None:
    entries = [user("yes"), assistant("no<|im_end|>"), user("word"), answer(BPE, "maybe")]
    result = tokenize(BPE, entries, allow=True)
    assert "no<|im_end|><|im_end|>\n<|im_start|>user" in "".join(result.tokens)


def test_list_content_cannot_be_trained_from_text() -> None:
    parts = assistant([{"type": "text", "text": "no"}])
    with pytest.raises(AssertionError, match="content is a list"):
        tokenize(toy_tokenizer(), [user("yes"), parts], allow=True)
    with pytest.raises(ListContentError):
        tokenize(toy_tokenizer(), [user("yes"), parts], allow=True)


# Tools -------------------------------------------------------------------------------------------------------


def test_tool_prompts_equal_those_of_the_server() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    as_server = [
        {"type": "function", "function": {"name": "look", "description": None, "parameters": {"type": "object"}}}
    ]
    entries = [user("yes"), answer(BPE_TOOLS, "maybe")]
    as_given = tokenize(BPE_TOOLS, entries, tools=tools)
    as_vllm = tokenize(BPE_TOOLS, entries, tools=tools, chat_template_tool_schema_format="vllm_openai")
    sampled = [*spell(BPE_TOOLS, "maybe"), END]
    assert as_given.token_ids == [*server_prompt(BPE_TOOLS, [user("yes")], tools), *sampled]
    assert as_vllm.token_ids == [*server_prompt(BPE_TOOLS, [user("yes")], as_server), *sampled]


def test_sampled_tool_call_appears_once_however_it_was_spaced() -> None:
    sampled = 'yes\n<tool_call>{"name":"look","arguments":{"at":"no"}}\n\n</tool_call>'
    choice = answer(BPE_TOOLS, sampled, content="yes", tool_calls=[call('{"at": "no"}')])
    result = tokenize(BPE_TOOLS, [user("yes"), choice, {"role": "tool", "content": "word"}, answer(BPE_TOOLS, "no")])
    assert "".join(result.tokens) == (
        f"<|im_start|>user\nyes<|im_end|>\n<|im_start|>assistant\n{sampled}<|im_end|>\n"
        "<|im_start|>tool\nword<|im_end|>\n<|im_start|>assistant\nno<|im_end|>"
    )
    assert trained_part(result) == [*spell(BPE_TOOLS, sampled), END, *spell(BPE_TOOLS, "no"), END]


def test_space_that_the_template_puts_after_a_tool_call_is_left_out() -> None:
    tokenizer = bpe_tokenizer(TOOLS_TEMPLATE.replace("{%- endfor %}<|im_end|>", "{% endfor %}\n\n<|im_end|>"))
    sampled = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    choice = answer(tokenizer, sampled, content="", tool_calls=[call("{}")])
    result = tokenize(tokenizer, [user("yes"), choice, {"role": "tool", "content": "word"}, answer(tokenizer, "no")])
    assert f"{sampled}<|im_end|>\n<|im_start|>tool\n" in "".join(result.tokens)


def test_tool_call_that_was_rewritten_gives_a_second_sequence() -> None:
    sampled = '<tool_call>\n{"arguments": {"at": "no"}, "name": "look"}\n</tool_call>'
    choice = answer(BPE_TOOLS, sampled, content=None, tool_calls=[call('{"at": "no"}')])
    entries = [user("yes"), choice, {"role": "tool", "content": "word"}, answer(BPE_TOOLS, "no")]
    first, second = tokenize_alone(BPE_TOOLS, entries)
    assert trained_part(first) == [*spell(BPE_TOOLS, sampled), END]
    assert '{"name": "look", "arguments": {"at": "no"}}' in "".join(second.tokens)
    assert trained_part(second) == [*spell(BPE_TOOLS, "no"), END]


@pytest.mark.parametrize(
    ("rendering", "text"),
    [
        ("{{ f.arguments }}", '{"a": "é"}'),
        ("{{ 'x' + f.arguments + 'y' }}", 'x{"a": "é"}y'),
        ("{{ f.arguments + 'y' }}", '{"a": "é"}y'),
        ("{{ f.arguments | tojson }}", '{"a": "é"}'),
        ("{% for k, v in f.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "a=é"),
        ("{% if f.arguments is mapping %}{{ f.arguments.a }}{% endif %}", "é"),
    ],
)
def test_tool_arguments_suit_the_template(rendering: str, text: str) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{% set f = c.function %}["
        + rendering
        + "]{% endfor %}<|im_end|>{% endfor %}"
    )
    tokenizer = bpe_tokenizer(template)
    entries = [user("yes"), assistant("no", tool_calls=[call('{"a": "é"}')]), user("word"), answer(tokenizer, "maybe")]
    prompt = "".join(BPE.decode(tokenize(tokenizer, entries).token_ids))
    assert prompt == f"yes<|im_end|>no[{text}]<|im_end|>word<|im_end|>maybe<|im_end|>"


# Reasoning ---------------------------------------------------------------------------------------------------

THOUGHT = "<think>\nsay\n</think>\n\nyes"


def test_template_that_drops_old_reasoning_gives_each_turn_its_own_prompt() -> None:
    entries = [user("word"), answer(BPE_THINK, THOUGHT), user("say no"), answer(BPE_THINK, "<think>\n</think>\n\nno")]
    first, second = tokenize_alone(BPE_THINK, entries)
    assert first.token_ids == [*server_prompt(BPE_THINK, [user("word")]), *spell(BPE_THINK, THOUGHT), END]
    seen = server_prompt(BPE_THINK, [user("word"), assistant(THOUGHT), user("say no")])
    assert "say\n</think>" not in BPE_THINK.decode(seen)
    assert second.token_ids == [*seen, *spell(BPE_THINK, "<think>\n</think>\n\nno"), END]
    assert sum(first.assistant_mask) + sum(second.assistant_mask) == pytest.approx(1 / first.weight, abs=1e-3)
    assert first.weight == second.weight


def test_one_sequence_for_a_conversation_that_needs_two_is_refused() -> None:
    entries = [user("word"), answer(BPE_THINK, THOUGHT), user("no"), answer(BPE_THINK, "no")]
    with pytest.raises(TokenizationError, match="message 3 answers does not show the earlier turns") as caught:
        tokenize(BPE_THINK, entries)
    assert caught.value.message_index == 3


def test_reasoning_that_the_template_keeps_stays_in_one_sequence() -> None:
    tool = {"role": "tool", "content": "word"}
    entries = [user("word"), answer(BPE_THINK, THOUGHT), tool, answer(BPE_THINK, THOUGHT)]
    [result] = tokenize_alone(BPE_THINK, entries)
    seen = BPE_THINK.decode(server_prompt(BPE_THINK, [user("word"), assistant(THOUGHT), tool]))
    assert BPE_THINK.decode(result.token_ids) == f"{seen}{THOUGHT}<|im_end|>"


def test_reasoning_that_a_parser_took_away_gives_a_second_sequence() -> None:
    parsed = answer(BPE, THOUGHT, content="yes")
    first, second = tokenize_alone(BPE, [user("word"), parsed, user("no"), answer(BPE, "no")])
    assert trained_part(first) == [*spell(BPE, THOUGHT), END]
    assert second.token_ids == [
        *server_prompt(BPE, [user("word"), assistant("yes"), user("no")]),
        *spell(BPE, "no"),
        END,
    ]


@pytest.mark.parametrize(
    ("sampled", "content", "num_sequences"),
    [
        (THOUGHT, "no", 2),  # reasoning gone, the rest edited
        ("say: yes", "yes", 2),
        ("yes", "say: yes", 2),
        ("yes", "", 2),
        ("yes \n", "yes", 1),
        ("yes. no", "yes.", 1),  # cut at a stop word
        ("yes", "no", 1),  # edited
    ],
)
def test_what_later_prompts_may_change_in_a_turn(sampled: str, content: str, num_sequences: int) -> None:
    entries = [user("word"), answer(BPE, sampled, content=content), user("no"), answer(BPE, "maybe")]
    results = tokenize_alone(BPE, entries)
    assert len(results) == num_sequences
    assert trained_part(results[0])[: len(sampled) + 1] == [*spell(BPE, sampled), END]
    assert trained_part(results[-1])[-6:] == [*spell(BPE, "maybe"), END]


def test_prompt_whose_beginning_changed_begins_a_new_sequence() -> None:
    tokenizer = bpe_tokenizer("[{{ messages | length }}]" + BPE.chat_template)
    first, second = tokenize_alone(tokenizer, [user("no"), answer(BPE, "yes"), user("no"), answer(BPE, "yes")])
    assert tokenizer.decode(first.token_ids).startswith("[1]")
    assert tokenizer.decode(second.token_ids).startswith("[3]")


def test_template_options_apply_to_training_prompts() -> None:
    entries = [user("word"), answer(BPE_THINK, "yes"), user("no"), answer(BPE_THINK, "no")]
    options = {"enable_thinking": False}
    first, second = tokenize_alone(BPE_THINK, entries, chat_template_kwargs=options)
    assert first.token_ids == [
        *server_prompt(BPE_THINK, [user("word")], **options),
        *spell(BPE_THINK, "yes"),
        END,
    ]
    assert "<think>\n\n</think>\n\nyes" in BPE_THINK.decode(first.token_ids)
    # Later on the template shows the answer without the empty block: the second answer followed that.
    seen = server_prompt(BPE_THINK, [user("word"), assistant("yes"), user("no")], **options)
    assert second.token_ids == [*seen, *spell(BPE_THINK, "no"), END]


# Groups ------------------------------------------------------------------------------------------------------


def _group(*texts: str, rewards: list[float] | None = None, **fields: Any) -> TrajectoryGroup:
    rewards = rewards or [float(index) for index in range(len(texts))]
    return TrajectoryGroup(
        [
            Trajectory(messages_and_choices=[user("say the word"), answer(BPE, text)], reward=reward, **fields)
            for text, reward in zip(texts, rewards, strict=True)
        ]
    )


def _tokenize_groups(*groups: TrajectoryGroup, allow: bool = False, **kwargs: Any) -> list[TokenizedResult]:
    kwargs.setdefault("rng", random.Random(1))
    return list(tokenize_trajectory_groups(BPE, list(groups), allow, True, **kwargs))


def test_shared_prompt_ends_before_the_last_prompt_token() -> None:
    results = _tokenize_groups(_group("yes", "no"))
    prompt = server_prompt(BPE, [user("say the word")])
    assert [result.prompt_length for result in results] == [len(prompt) - 1] * 2
    assert all(result.token_ids[: len(prompt)] == prompt for result in results)


def test_shared_prompt_does_not_reach_into_sampled_or_trained_text() -> None:
    prompt_length = len(server_prompt(BPE, [user("say the word")])) - 1
    assert {result.prompt_length for result in _tokenize_groups(_group("yes no", "yes maybe"))} == {prompt_length}
    plain = TrajectoryGroup(
        [
            Trajectory(messages_and_choices=[user("say the word"), assistant(text)], reward=reward)
            for reward, text in enumerate(["yes no", "yes maybe"])
        ]
    )
    assert {result.prompt_length for result in _tokenize_groups(plain, allow=True)} == {prompt_length}


def test_additional_histories_share_advantage_and_weight() -> None:
    more = History(messages_and_choices=[user("no"), answer(BPE, "maybe")])
    group = _group("yes", "no", additional_histories=[more])
    results = _tokenize_groups(group, shuffle_group_trajectories=False)
    assert [trained_part(result) for result in results] == [
        [*spell(BPE, text), END] for text in ("yes", "maybe", "no", "maybe")
    ]
    # 3 + 1 and 5 + 1 tokens; 2 + 1 and 5 + 1
    assert [result.weight for result in results] == pytest.approx([1 / 10, 1 / 10, 1 / 9, 1 / 9], rel=1e-6)
    assert [result.advantage for result in results] == pytest.approx([-1, -1, 1, 1], abs=1e-5)
    assert len({result.prompt_id for result in results}) == 1


def test_groups_get_different_prompt_ids_and_the_generator_decides_everything() -> None:
    groups = [_group("yes", "no", "maybe"), _group("yes", "no", "maybe")]
    first, second = _tokenize_groups(*groups), _tokenize_groups(*groups)
    assert len({result.prompt_id for result in first}) == 2
    assert all(0 < result.prompt_id < 2**63 for result in first)
    assert [(result.prompt_id, result.token_ids) for result in first] == [
        (result.prompt_id, result.token_ids) for result in second
    ]
    orders = {
        tuple(result.advantage for result in _tokenize_groups(groups[0], rng=random.Random(seed))) for seed in range(20)
    }
    assert len(orders) > 1


def test_global_random_state_is_left_alone() -> None:
    state = random.getstate()
    _tokenize_groups(_group("yes", "no"), rng=None)
    assert random.getstate() == state


def test_trajectories_without_advantage_are_left_out_unless_wanted() -> None:
    group = _group("yes", "no", "maybe", rewards=[0.0, 0.5, 1.0])
    assert len(_tokenize_groups(group)) == 2
    assert len(_tokenize_groups(group, drop_zero_advantage_trajectories=False)) == 3
    assert _tokenize_groups(TrajectoryGroup([]), _group("yes"), _group("yes", "no", rewards=[0.7, 0.7])) == []


def test_unusable_trajectory_is_named() -> None:
    group = _group("yes", "no")
    group.trajectories[1].messages_and_choices = [answer(BPE, "no")]
    with pytest.raises(TokenizationError, match="trajectory 1 of group 1: the chat template failed") as caught:
        _tokenize_groups(_group("yes", "no"), group)
    assert caught.value.trajectory_index == 1


def test_result_without_prompt() -> None:
    result = _tokenize_groups(_group("yes", "no"))[0]
    rest = result.without_prompt()
    length = result.prompt_length
    assert (rest.token_ids, rest.input_pos) == (result.token_ids[length:], result.input_pos[length:])
    assert (rest.assistant_mask, rest.prompt_length) == (result.assistant_mask[length:], 0)
    assert len(rest.logprobs) == len(rest.token_ids)


MALFORMED = [
    pytest.param({"role": "user", "content": 5}, None, "message 0 does not have the form", id="content"),
    pytest.param({"role": "user", "content": [5]}, None, "message 0 does not have the form", id="part"),
    pytest.param(
        {"role": "assistant", "tool_calls": [{"id": "call-1"}]},
        None,
        "message 0 .* KeyError: 'function'",
        id="tool-call",
    ),
    pytest.param({"role": "user", "content": "U"}, [{"type": "function"}], "tool 0 .* KeyError", id="tool"),
    pytest.param(
        {"role": "user", "content": "U"},
        [{"name": "look"}, {"type": "function", "function": {"description": "d"}}],
        "tool 1 .* KeyError: 'name'",
        id="nameless-tool",
    ),
]


@pytest.mark.parametrize(("message", "tools", "words"), MALFORMED)
def test_malformed_messages_and_tools_are_named(message: Any, tools: Any, words: str) -> None:
    trajectories = [
        Trajectory(messages_and_choices=[message, answer(BPE, "A")], tools=tools, reward=reward)
        for reward in (0.0, 1.0)
    ]
    with pytest.raises(TokenizationError, match=f"trajectory 0 of group 0: {words}") as caught:
        list(
            tokenize_trajectory_groups(
                BPE, [TrajectoryGroup(trajectories)], False, True, chat_template_tool_schema_format="vllm_openai"
            )
        )
    assert caught.value.trajectory_index == 0
