"""RULER, with a judge behind real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import pytest

import art
from art.errors import DataError, JudgeError
from art.metrics import MetricsBuilder
from art.rewards import ruler, ruler_score_group
from art.rewards.ruler import DEFAULT_RUBRIC, Response, TrajectoryScore
from art.trajectories import History
from tests.support.conversations import make_choice, make_trajectory
from tests.support.scripted_openai import ScriptedOpenAI, serving

pytestmark = [
    pytest.mark.usefixtures("litellm"),
    pytest.mark.asyncio,
    # litellm loads parts of itself with the first call, and those warn of their own types.
    pytest.mark.filterwarnings("ignore:.*using the .ReadOnly. qualifier:UserWarning"),
]
JUDGE = "openai/judge"


def reach(server: ScriptedOpenAI, **more: Any) -> dict[str, Any]:
    return {"api_base": server.base_url, "api_key": "sk-judge", "max_retries": 0, **more}


def scored(*entries: tuple[Any, Any]) -> str:
    scores = [
        {"trajectory_id": identity, "explanation": f"why {identity}", "score": score} for identity, score in entries
    ]
    return json.dumps({"scores": scores})


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]


async def judge(answer: Any, *texts: str, **params: Any) -> list[TrajectoryScore]:
    async with serving(ScriptedOpenAI(answer)) as server:
        return await ruler([say(text) for text in texts], JUDGE, reach(server, **params))


async def test_scores_are_matched_by_id_whatever_their_order() -> None:
    async with serving(ScriptedOpenAI(scored(("2", 0.25), ("1", 1.0)))) as server:
        scores = await ruler([say("a"), say("b")], JUDGE, reach(server), rubric="only rhymes", tools=[{"name": "look"}])
    assert [(s.trajectory_id, s.score, s.explanation) for s in scores] == [("1", 1.0, "why 1"), ("2", 0.25, "why 2")]
    (request,) = server.chats
    task, material = request["messages"]
    assert (request["model"], task["role"], material["role"]) == ("judge", "system", "user")
    assert "only rhymes" in task["content"]
    assert '<trajectory id="2">' in material["content"]
    assert "<available_tools>" in material["content"]
    assert request["response_format"]["json_schema"]["name"] == "Response"


async def test_no_trajectories_ask_nobody() -> None:
    assert await ruler([], JUDGE) == []


async def test_same_trajectories_are_sent_once_and_share_the_score(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedOpenAI(scored(("1", 0.75)))) as server:
        with caplog.at_level(logging.INFO, "art.rewards"):
            scores = await ruler([say("a"), say("a")], JUDGE, reach(server))
    assert [(s.trajectory_id, s.score) for s in scores] == [("1", 0.75), ("2", 0.75)]
    prompt = server.chats[0]["messages"][1]["content"]
    assert (prompt.count("<trajectory "), "<context>" in prompt) == (1, False)
    assert "the same" in caplog.text


async def test_scores_outside_the_range_and_numeric_ids_are_taken_as_they_are() -> None:
    scores = await judge(scored((1, 1.5), (2, -1)), "a", "b")
    assert [s.score for s in scores] == [1.5, -1.0]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (scored(("1", 1)), "ids 1 to 2 once each; it scored: 1"),
        (scored(("1", 1), ("2", 0), ("3", 0)), "it scored: 1, 2, 3"),
        (scored(("1", 1), ("1", 0)), "it scored: 1, 1"),
        (scored(("1", 1), ("trajectory two", 0)), "trajectory two"),
        ('{"scores": [{"trajectory_id": "1", "explanation": "", "score": NaN}]}', "not in the form|not a number|ids 1"),
        ("I would rather not.", "not in the form"),
        ('{"scores": ', "not in the form"),
        ({"role": "assistant", "content": None}, "no text"),
        ({"role": "assistant", "content": "", "no_choices": True}, "no choices"),
    ],
)
async def test_unusable_answer_is_a_value_error_that_says_why(answer: Any, complaint: str) -> None:
    with pytest.raises(JudgeError, match=complaint) as caught:
        await judge(answer, "a", "b")
    assert isinstance(caught.value, ValueError)
    if isinstance(answer, str):
        assert caught.value.answer == answer


@pytest.mark.parametrize("first", [scored(("1", 1)), "no JSON", {"role": "assistant", "content": None}])
async def test_judge_whose_answer_is_unusable_is_asked_a_second_time(
    first: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ScriptedOpenAI(first, scored(("1", 1), ("2", 0)), "never asked for")) as server:
        scores = await ruler([say("a"), say("b")], JUDGE, reach(server))
    assert [score.score for score in scores] == [1.0, 0.0]
    assert len(server.chats) == 2
    assert server.chats[0]["messages"] == server.chats[1]["messages"]
    assert "asked a second time" in caplog.text


async def test_judge_is_not_asked_a_third_time() -> None:
    async with serving(ScriptedOpenAI("no JSON", scored(("1", 1)), scored(("1", 1), ("2", 0)))) as server:
        with pytest.raises(JudgeError, match="it scored: 1"):
            await ruler([say("a"), say("b")], JUDGE, reach(server))
    assert len(server.chats) == 2


async def test_score_that_is_not_a_number_is_refused() -> None:
    answer = '{"scores": [{"trajectory_id": "1", "explanation": "", "score": NaN}]}'
    with pytest.raises(JudgeError):
        await judge(answer, "a")


def make_group(*texts: str) -> art.TrajectoryGroup:
    group = art.TrajectoryGroup(
        [
            art.Trajectory(
                messages_and_choices=[{"role": "user", "content": "q"}, make_choice(text)],
                tools=[{"type": "function", "function": {"name": f"tool-{text}"}}],
                reward=0.5,
                metrics={"m": 1},
                metadata={"d": "x"},
                logs=["first"],
                initial_policy_version=3,
                final_policy_version=4,
            )
            for text in texts
        ],
        exceptions=[ValueError("lost")],
        metadata={"scenario_id": "s"},
        metrics={"g": 2},
        logs=["of the group"],
    )
    return group


async def test_scored_group_is_a_copy_that_keeps_everything_else() -> None:
    group = make_group("a", "b")
    before = group.model_dump()
    async with serving(ScriptedOpenAI(scored(("1", 1.0), ("2", 0.0)))) as server:
        scored_group = await ruler_score_group(group, JUDGE, reach(server))
    assert scored_group is not None
    assert group.model_dump() == before
    expected = group.model_dump()
    for trajectory, score, identity in zip(expected["trajectories"], (1.0, 0.0), "12", strict=True):
        trajectory["reward"] = score
        trajectory["metrics"] |= {"independent_reward": 0.5, "ruler_score": score}
        trajectory["logs"].append(f"RULER explanation: why {identity}")
    assert scored_group.model_dump() == expected
    for old, new in zip(group, scored_group, strict=True):
        assert new.start_time == old.start_time
        assert new.messages_and_choices[1] is old.messages_and_choices[1]
        assert new.messages_and_choices is not old.messages_and_choices
    scored_group.log("later")
    assert group.logs == ["of the group"]
    prompt = server.chats[0]["messages"][1]["content"]
    assert "tool-a" in prompt
    assert "tool-b" not in prompt


async def test_additional_histories_are_refused_also_when_errors_are_swallowed() -> None:
    group = art.TrajectoryGroup([make_trajectory(additional_histories=[History(messages_and_choices=[])])])
    with pytest.raises(DataError, match="additional_histories"):
        await ruler_score_group(group, swallow_exceptions=True)


async def test_group_of_failures_needs_no_judge() -> None:
    group = art.TrajectoryGroup([ValueError("lost")])
    scored_group = await ruler_score_group(group)
    assert scored_group is not None
    assert scored_group.exceptions == group.exceptions


@pytest.mark.parametrize("answer", [500, "no JSON", scored(("1", 1)), None])
async def test_failing_judge_raises_or_gives_none(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedOpenAI(answer)) as server:
        params = reach(server, timeout=0.3)
        with pytest.raises(Exception, match=r".") as caught:
            await ruler_score_group(make_group("a", "b"), JUDGE, params)
        assert type(caught.value).__name__ in ("InternalServerError", "JudgeError", "Timeout")
        assert await ruler_score_group(make_group("a", "b"), JUDGE, params, swallow_exceptions=True) is None
    assert "its group is dropped" in caplog.text
    assert "sk-judge" not in caplog.text


async def test_groups_of_a_failing_judge_are_dropped_from_a_gather() -> None:
    def answer(request: dict[str, Any]) -> Any:
        prompt = request["messages"][1]["content"]
        return "no JSON" if "bad" in prompt else scored(*((n, 1 / int(n)) for n in re.findall(r'id="(\d+)"', prompt)))

    async with serving(ScriptedOpenAI(answer_to=answer)) as server:

        async def rollout(text: str) -> art.Trajectory:
            return make_group(text).trajectories[0]

        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(f"{kind} {n}") for n in range(2)) for kind in ("good", "bad", "fine")),
            pbar_desc=None,
            after_each=lambda group: ruler_score_group(group, JUDGE, reach(server), swallow_exceptions=True),
        )
    assert [[t.reward for t in group] for group in groups] == [[1.0, 0.5], [1.0, 0.5]]


async def test_cost_of_the_judge_goes_to_the_active_builder() -> None:
    builder = MetricsBuilder("train")
    builder.register_model_pricing("judge", prompt_per_million=1.0, completion_per_million=2.0)
    with builder.activate_context():
        await judge(scored(("1", 1)), "a")
        with pytest.raises(JudgeError):
            await judge("no JSON", "a")
    row = await builder.flush()
    assert row["costs/train/judge/ruler"] == pytest.approx(
        3 * (10 * 1.0 + 5 * 2.0) / 1e6
    )  # the second judge was asked twice


async def test_unknown_price_is_no_error() -> None:
    builder = MetricsBuilder("train")
    with builder.activate_context():
        assert len(await judge(scored(("1", 1)), "a")) == 1
    assert "costs/train/judge/ruler" not in await builder.flush()


async def test_debug_shows_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedOpenAI(scored(("1", 1)))) as server:
        with caplog.at_level(logging.INFO, "art.rewards"):
            await ruler([say("a")], JUDGE, reach(server))
            assert "why 1" not in caplog.text
            await ruler([say("a")], JUDGE, reach(server), debug=True)
    assert "why 1" in caplog.text


async def test_cancelling_reaches_the_caller() -> None:
    async with serving(ScriptedOpenAI(None)) as server:
        task = asyncio.create_task(
            ruler_score_group(make_group("a", "b"), JUDGE, reach(server), swallow_exceptions=True)
        )
        while not server.chats and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_names_are_where_scripts_look_for_them() -> None:
    assert Response(scores=[TrajectoryScore(trajectory_id="1", explanation="", score=0)]).scores[0].score == 0.0
    assert len(DEFAULT_RUBRIC) > 100
