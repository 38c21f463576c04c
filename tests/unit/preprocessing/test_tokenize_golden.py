"""Tokenizing agrees with the recorded numbers wherever these are not wrong themselves."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice

from art.preprocessing.tokenize import TokenizedResult, tokenize_trajectory, tokenize_trajectory_groups
from art.trajectories import History, Trajectory, TrajectoryGroup
from tests.support.tokenizers import answer, load_golden, toy_tokenizer

GOLDEN = load_golden("tokenization.json")
TOKENIZER = toy_tokenizer()


def _case(name: str) -> dict[str, Any]:
    return next(case for case in GOLDEN["cases"] if case["name"] == name)


def _tokenize(case: dict[str, Any]) -> TokenizedResult | None:
    entries = [Choice.model_validate(entry) if "message" in entry else entry for entry in case["messages_and_choices"]]
    history = History(messages_and_choices=entries, tools=case["tools"])
    return tokenize_trajectory(TOKENIZER, None, history, 1.0, case["allow_training_without_logprobs"], Trajectory())


def _null_for_nan(values: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


@pytest.mark.parametrize("name", [case["name"] for case in GOLDEN["cases"] if case["verdict"] == "match"])
def test_conversation_gives_the_recorded_tokens(name: str) -> None:
    case = _case(name)
    expected = case["result"]
    result = _tokenize(case)
    assert result is not None
    assert result.token_ids == expected["token_ids"]
    assert result.assistant_mask == expected["assistant_mask"]
    assert _null_for_nan(result.logprobs) == expected["logprobs"]
    assert result.input_pos == list(range(len(expected["token_ids"])))
    assert result.chat == expected["chat"]
    assert "".join(result.tokens) == expected["text"]


@pytest.mark.parametrize("name", [case["name"] for case in GOLDEN["cases"] if case["verdict"] == "match (None)"])
def test_conversation_without_a_trained_turn_gives_nothing(name: str) -> None:
    assert _tokenize(_case(name)) is None


def test_text_training_of_a_turn_with_tool_calls_is_refused() -> None:
    with pytest.raises(ValueError, match="message 1 calls tools"):
        _tokenize(_case("plain_tool_call_allowed"))


def test_tools_in_openai_form_are_not_wrapped_again() -> None:
    wrapped, bare = _tokenize(_case("openai_tools_double_wrapped")), _tokenize(_case("bare_tools_wrapped"))
    assert wrapped is not None
    assert bare is not None
    assert wrapped.token_ids == bare.token_ids


def test_sampled_tool_calls_are_not_rendered_again() -> None:
    case = _case("mid_tool_call_duplicated")
    result = _tokenize(case)
    assert result is not None
    twice = "\n<tool_call>\nf{}\n</tool_call><|im_end|>" * 2
    assert "".join(result.tokens) == case["result"]["text"].replace(twice, twice[: len(twice) // 2])
    assert sum(result.assistant_mask) == 32 + 3


def test_choice_without_logprobs_is_trained_from_its_text_if_allowed() -> None:
    result = _tokenize(_case("choice_without_logprobs_allowed"))
    assert result is not None
    assert "".join(result.tokens) == "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nNL"
    assert result.assistant_mask[-3:] == [0, 1, 1]
    assert all(math.isnan(logprob) for logprob in result.logprobs)


def test_empty_logprob_list_trains_nothing() -> None:
    assert _tokenize(_case("empty_logprobs")) is None


@pytest.mark.parametrize("group", GOLDEN["groups"], ids=lambda group: group["name"])
def test_group_gives_the_recorded_advantages_weights_and_prompt_lengths(group: dict[str, Any]) -> None:
    trajectories = [
        Trajectory(messages_and_choices=[{"role": "user", "content": "U1"}, answer(TOKENIZER, text)], reward=reward)
        for text, reward in zip(group["texts"], group["rewards"], strict=True)
    ]
    results = list(
        tokenize_trajectory_groups(
            TOKENIZER,
            [TrajectoryGroup(trajectories)],
            False,
            group["scale_rewards"],
            shuffle_group_trajectories=False,
            rng=random.Random(0),
        )
    )
    found = [
        {
            "advantage": round(result.advantage, 6),
            "weight": round(result.weight, 6),
            "prompt_length": result.prompt_length,
            "text": "".join(result.tokens),
        }
        for result in results
    ]
    assert found == group["results"]
    assert len({result.prompt_id for result in results}) <= 1
