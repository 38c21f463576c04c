"""litellm's real answers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from art.trajectories import Trajectory
from art.utils.litellm import convert_litellm_choice_to_openai
from art.utils.suppress_litellm_serialization_warnings import suppress_litellm_serialization_warnings


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm.types.utils

    return litellm.types.utils


def response(types: Any, **changed: Any) -> Any:
    token = {"token": "token_id:5", "bytes": [97], "logprob": -0.25}
    choice = {
        "finish_reason": "tool_calls",
        "index": 1,
        "message": {
            "role": "assistant",
            "content": "text",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}}],
        },
        "logprobs": {"content": [{**token, "top_logprobs": [token]}], "refusal": None},
    }
    return types.ModelResponse(id="r", created=7, model="m", choices=[{**choice, **changed}])


def test_choice_of_a_response_keeps_text_calls_and_logprobs(types: Any) -> None:
    choice = convert_litellm_choice_to_openai(response(types).choices[0])
    token = {"token": "token_id:5", "bytes": [97], "logprob": -0.25}
    assert choice.model_dump(exclude_none=True) == {
        "finish_reason": "tool_calls",
        "index": 1,
        "logprobs": {"content": [{**token, "top_logprobs": [token]}]},
        "message": {
            "role": "assistant",
            "content": "text",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"x":1}'}}],
        },
    }


def test_choice_without_logprobs_and_calls(types: Any) -> None:
    plain = response(types, logprobs=None, finish_reason="stop", message={"role": "assistant", "content": None})
    choice = convert_litellm_choice_to_openai(plain.choices[0])
    assert (choice.message.content, choice.message.tool_calls, choice.logprobs) == (None, None, None)
    assert choice.finish_reason == "stop"


@pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class")  # of litellm's own types
def test_streamed_choice_is_refused(types: Any) -> None:
    with pytest.raises(AssertionError, match="stream"):
        convert_litellm_choice_to_openai(types.StreamingChoices(delta=types.Delta(content="a")))


def test_logprobs_without_content_are_refused(types: Any) -> None:
    empty = response(types, logprobs={"content": None, "refusal": None})
    with pytest.raises(AssertionError, match="content"):
        convert_litellm_choice_to_openai(empty.choices[0])


def test_choice_can_be_put_into_a_trajectory_as_it_is(types: Any) -> None:
    given = response(types).choices[0]
    trajectory = Trajectory(messages_and_choices=[{"role": "user", "content": "q"}, given])
    assert trajectory.for_logging()["messages"][1]["trainable"] is True
    assert trajectory.messages()[1]["content"] == "text"


def test_serializer_warnings_are_silenced() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        suppress_litellm_serialization_warnings()
        warnings.warn_explicit("Pydantic serializer warnings: x", UserWarning, "main.py", 1, module="pydantic.main")
        with pytest.raises(UserWarning, match="other"):
            warnings.warn_explicit("other", UserWarning, "main.py", 1, module="pydantic.main")


@pytest.mark.parametrize("name", ["deployment", "deploy_model"])
def test_left_out_module_says_so(name: str) -> None:
    import importlib

    with pytest.raises(ImportError, match="not part of this package"):
        importlib.import_module(f"art.utils.{name}")
