from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pydantic
import pytest
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message import ChatCompletionMessage

from art.errors import DataError
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup, get_messages
from tests.support.conversations import make_choice, make_tool_call, make_trajectory

USER: Any = {"role": "user", "content": "question"}
BARE_TOOL: Any = {"name": "look", "parameters": {"type": "object", "properties": {}}}
WRAPPED_TOOL: Any = {"type": "function", "function": BARE_TOOL}


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001  # gives the error a traceback
        return caught


# Messages ---------------------------------------------------------------------------------------------------


def test_choice_becomes_an_assistant_message_without_its_reasoning() -> None:
    choice = make_choice("answer", message={"reasoning_content": "hm"})
    assert get_messages([USER, choice]) == [USER, {"role": "assistant", "content": "answer"}]


def test_tool_calls_of_a_choice_are_kept_and_missing_text_becomes_empty() -> None:
    choice = make_choice(None, message={"tool_calls": [make_tool_call()]})
    assert get_messages([choice]) == [{"role": "assistant", "content": "", "tool_calls": [make_tool_call()]}]


@pytest.mark.parametrize("content", [{"content": None}, {}])
def test_message_is_copied_with_content(content: dict[str, None]) -> None:
    message: Any = {"role": "assistant", "tool_calls": [make_tool_call()], **content}
    assert get_messages([message]) == [{**message, "content": ""}]
    assert message == {"role": "assistant", "tool_calls": [make_tool_call()], **content}


def test_message_object_counts_as_a_message() -> None:
    message: Any = ChatCompletionMessage(role="assistant", content="answer")
    trajectory = Trajectory(messages_and_choices=[message])
    assert trajectory.messages_and_choices == [{"role": "assistant", "content": "answer"}]
    trajectory.messages_and_choices.append(message)
    assert trajectory.messages() == [{"role": "assistant", "content": "answer"}] * 2


def test_other_entry_is_an_error_that_names_its_place() -> None:
    entries: Any = [USER, "hello"]
    with pytest.raises(DataError, match=r"entry 1 .*got str"):
        get_messages(entries)
    with pytest.raises(pydantic.ValidationError, match="entry 1 is neither a message nor a Choice: str"):
        Trajectory(messages_and_choices=entries)


# Trajectory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Trajectory, History])
def test_messages_instead_of_messages_and_choices_is_an_error_that_says_so(model: type[pydantic.BaseModel]) -> None:
    with pytest.raises(pydantic.ValidationError, match="messages_and_choices"):
        model.model_validate({"messages": [USER]})


def test_tools_are_kept_in_both_forms() -> None:
    tools: Any = [BARE_TOOL, WRAPPED_TOOL]
    assert Trajectory(tools=tools).tools == tools
    assert History(messages_and_choices=[], tools=tools).tools == tools
    assert Trajectory.model_validate(Trajectory(tools=tools).model_dump()).tools == tools
    with pytest.raises(pydantic.ValidationError, match="tool 1"):
        Trajectory(tools=[WRAPPED_TOOL, cast(Any, {"parameters": {}})])


def test_entries_are_kept_as_given_in_a_list_of_their_own() -> None:
    choice = make_choice()
    given: list[Any] = [USER, choice]
    trajectory = Trajectory(messages_and_choices=given)
    assert trajectory.messages_and_choices[0] is USER
    assert trajectory.messages_and_choices[1] is choice
    trajectory.messages_and_choices.append(USER)
    assert len(given) == 2


def test_defaults_are_not_shared() -> None:
    first, second = Trajectory(), Trajectory()
    first.messages_and_choices.append(make_choice())
    first.metrics["x"] = 1
    first.log("line")
    first.additional_histories.append(History(messages_and_choices=[]))
    assert second.model_dump() == Trajectory().model_dump()


def test_text_is_no_metric() -> None:
    with pytest.raises(pydantic.ValidationError, match="metadata"):
        Trajectory(metrics={"correct": "yes"})  # type: ignore[dict-item]
    assert Trajectory(metrics={"a": True, "b": 2, "c": 0.5}).metrics == {"a": True, "b": 2, "c": 0.5}


def test_finish_measures_since_the_start_in_its_time_zone() -> None:
    naive = Trajectory(start_time=datetime.now() - timedelta(seconds=90))
    aware = Trajectory(start_time=datetime.now(UTC) - timedelta(seconds=90))
    for trajectory in (naive, aware):
        assert trajectory.finish() is trajectory
        assert 90 <= trajectory.metrics["duration"] < 100


@pytest.mark.asyncio
async def test_track_duration_adds_up_also_on_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 20.0, 23.5])
    monkeypatch.setattr("art.trajectories.time", SimpleNamespace(monotonic=lambda: next(clock)))
    trajectory = Trajectory()
    async with trajectory.track_duration("llm"):
        pass
    with pytest.raises(KeyError):
        async with trajectory.track_duration("llm"):
            raise KeyError
    assert trajectory.metrics == {"llm_duration": 5.5}


def test_for_logging_marks_what_is_trained() -> None:
    choice = make_choice(None, message={"tool_calls": [make_tool_call()], "reasoning_content": "hm"})
    trajectory = Trajectory(
        messages_and_choices=[USER, choice],
        tools=[WRAPPED_TOOL],
        reward=0.5,
        initial_policy_version=3,
        metrics={"m": 1},
        metadata={"k": "v"},
        logs=["line"],
    )
    assert trajectory.for_logging() == {
        "reward": 0.5,
        "initial_policy_version": 3,
        "final_policy_version": None,
        "metrics": {"m": 1},
        "metadata": {"k": "v"},
        "messages": [
            {**USER, "trainable": False},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [make_tool_call()],
                "reasoning_content": "hm",
                "trainable": True,
            },
        ],
        "tools": [WRAPPED_TOOL],
        "logs": ["line"],
    }


def test_text_shows_reward_metrics_and_metadata() -> None:
    text = str(make_trajectory(0.25, metrics={"m": 1}, metadata={"k": "v"}))
    assert text == "Trajectory(reward=0.25, metrics={'m': 1}, metadata={'k': 'v'})"


@pytest.mark.parametrize("finish_reason", ["stop", "abort"])
def test_trajectory_survives_dump_and_load_with_its_choices(finish_reason: str) -> None:
    choice = make_choice(tokens=2, message={"tool_calls": [make_tool_call()]})
    choice.finish_reason = finish_reason  # type: ignore[assignment]  # vLLM has reasons of its own
    trajectory = Trajectory(
        messages_and_choices=[USER, choice],
        additional_histories=[History(messages_and_choices=[choice], tools=[BARE_TOOL])],
        initial_policy_version=1,
        final_policy_version=2,
    )
    for loaded in (
        Trajectory.model_validate(trajectory.model_dump()),
        Trajectory.model_validate_json(trajectory.model_dump_json()),
    ):
        assert loaded.model_dump() == trajectory.model_dump()
        assert loaded.messages_and_choices == [USER, choice]
        loaded_choice = loaded.additional_histories[0].messages_and_choices[0]
        assert isinstance(loaded_choice, Choice)
        assert loaded_choice.logprobs is not None
        assert [token.token for token in loaded_choice.logprobs.content or []] == ["token_id:0", "token_id:1"]


def test_subclass_keeps_its_own_fields() -> None:
    class Scored(Trajectory):
        answer: str = ""

    group = TrajectoryGroup([Scored(answer="x", reward=1.0)])
    assert isinstance(group.trajectories[0], Scored)
    assert group.trajectories[0].answer == "x"


# Group ------------------------------------------------------------------------------------------------------


def make_group() -> TrajectoryGroup:
    items: list[Trajectory | BaseException] = [
        make_trajectory(1.0, tokens=2),
        raised(ValueError("no answer")),
        make_trajectory(0.0),
    ]
    return TrajectoryGroup(
        items,
        exceptions=[KeyError("earlier")],
        metadata={"scenario_id": "s1"},
        metrics={"g": 0.5},
        logs=["line"],
    )


def test_exceptions_are_sorted_out_of_the_trajectories() -> None:
    group = make_group()
    assert [trajectory.reward for trajectory in group] == [1.0, 0.0]
    assert len(group) == 2
    assert [(error.type, error.message) for error in group.exceptions] == [
        ("<class 'KeyError'>", "'earlier'"),
        ("<class 'ValueError'>", "no answer"),
    ]
    assert "in raised" in group.exceptions[1].traceback


def test_group_without_trajectories_is_falsy_and_owns_its_lists() -> None:
    first, second = TrajectoryGroup([]), TrajectoryGroup([])
    assert not first
    first.log("line")
    first.metrics["m"] = 1
    assert second.model_dump() == {"trajectories": [], "exceptions": [], "metadata": {}, "metrics": {}, "logs": []}


def test_group_takes_an_iterator() -> None:
    assert [t.reward for t in TrajectoryGroup(make_trajectory(r) for r in (1.0, 2.0))] == [1.0, 2.0]


def test_group_survives_dump_and_load() -> None:
    group = make_group()
    for loaded in (
        TrajectoryGroup.model_validate(group.model_dump()),
        TrajectoryGroup.model_validate_json(group.model_dump_json()),
    ):
        assert loaded.model_dump() == group.model_dump()
        assert [t.reward for t in loaded] == [1.0, 0.0]
        assert loaded.exceptions == group.exceptions
        assert isinstance(loaded.exceptions[1], PydanticException)
        assert isinstance(loaded.trajectories[0].messages_and_choices[1], Choice)


def test_group_survives_dump_and_load_inside_another_model() -> None:
    class Batch(pydantic.BaseModel):
        groups: list[TrajectoryGroup]

    batch = Batch(groups=[make_group()])
    assert Batch.model_validate(batch.model_dump()).model_dump() == batch.model_dump()
    assert Batch.model_validate_json(batch.model_dump_json()).model_dump() == batch.model_dump()


def test_group_without_trajectories_field_is_an_error() -> None:
    with pytest.raises((TypeError, pydantic.ValidationError)):
        TrajectoryGroup.model_validate({})
    with pytest.raises(pydantic.ValidationError):
        TrajectoryGroup.model_validate({"trajectories": [{"reward": "high"}]})


def test_group_is_copied_and_pickled() -> None:
    group = make_group()
    shallow, deep, pickled = copy.copy(group), copy.deepcopy(group), pickle.loads(pickle.dumps(group))
    assert shallow == deep == pickled == group
    assert shallow.trajectories[0] is group.trajectories[0]
    assert deep.trajectories[0] is not group.trajectories[0]
    deep.trajectories[0].metrics["m"] = 1
    assert group.trajectories[0].metrics == {}


@pytest.mark.asyncio
async def test_finished_group_gives_itself_when_awaited() -> None:
    group = make_group()
    assert await group is group
    assert len(await TrajectoryGroup([])) == 0
