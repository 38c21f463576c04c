"""Copies that a process can read which does not know the script's own classes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from enum import Enum
from typing import Any

import numpy as np
import pytest
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

from art.preprocessing.plain_copies import plain_groups, plain_trajectories
from art.trajectories import History, Trajectory, TrajectoryGroup
from tests.support.conversations import make_choice

SCRIPT = """
import pickle, sys
from enum import Enum
from openai.types.chat.parsed_chat_completion import ParsedChatCompletionMessage, ParsedChoice
from pydantic import BaseModel
import art
from art.preprocessing.plain_copies import plain_groups

class Role(str, Enum):
    USER = "user"

class Text(str): ...
class Call(BaseModel):
    id: str
    name: str | None = None

class Answer(BaseModel):
    x: int

message = ParsedChatCompletionMessage[Answer](role="assistant", content='{"x": 1}', parsed=Answer(x=1))
choice = ParsedChoice[Answer](finish_reason="stop", index=0, message=message)

class Mine(art.Trajectory):
    answer: str | None = None

class Group(art.TrajectoryGroup): ...

rollout = Mine(
    messages_and_choices=[{"role": Role.USER, "content": Text("hi"), "tool_calls": [Call(id="c")]}, choice],
    additional_histories=[{"messages_and_choices": [{"role": Role.USER, "content": Text("again")}]}],
    reward=0.5,
    answer="x",
)
rollout.metadata["object"] = Call(id="m")
sys.stdout.buffer.write(pickle.dumps(plain_groups([Group([rollout, ValueError("failed")])])))
"""


def test_nothing_of_the_scripts_own_classes_is_left() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    (group,) = pickle.loads(done.stdout)

    assert type(group) is TrajectoryGroup
    assert [failure.message for failure in group.exceptions] == ["failed"]
    (trajectory,) = group.trajectories
    assert type(trajectory) is Trajectory
    assert trajectory.reward == 0.5
    question, answer = trajectory.messages_and_choices
    assert question == {"role": "user", "content": "hi", "tool_calls": [{"id": "c"}]}
    assert type(answer) is Choice
    assert answer.message.content == '{"x": 1}'
    (history,) = trajectory.additional_histories
    assert history.messages_and_choices == [{"role": "user", "content": "again"}]


def test_choices_and_their_logprobs_are_not_copied() -> None:
    choice = make_choice("yes", tokens=2)
    trajectory = Trajectory(
        messages_and_choices=[choice], additional_histories=[History(messages_and_choices=[choice])]
    )

    (copy,) = plain_trajectories([trajectory])

    assert copy.messages_and_choices[0] is choice
    assert copy.additional_histories[0].messages_and_choices[0] is choice


def test_choice_of_another_library_becomes_openais() -> None:
    class Message(BaseModel):
        role: str = "assistant"
        content: str | None = "hi"
        reasoning_content: str = "hm"

    class Choices(BaseModel):
        finish_reason: str = "content_filtered"  # one that OpenAI does not know
        index: int = 0
        message: Message = Message()
        logprobs: Any = make_choice("hi", tokens=1).logprobs

    foreign: Any = Choices()
    (copy,) = plain_trajectories([Trajectory(messages_and_choices=[foreign])])

    (choice,) = copy.messages_and_choices
    assert type(choice) is Choice
    assert pickle.loads(pickle.dumps(choice)) == choice


def test_tools_and_rewards_of_other_types() -> None:
    class Kind(Enum):
        FUNCTION = "function"

    tools: Any = [{"type": Kind.FUNCTION, "function": {"name": "f", "parameters": {"required": ("a", "b")}}}]
    trajectory = Trajectory(tools=tools)
    trajectory.reward = np.float32(0.5)

    (group,) = plain_groups([TrajectoryGroup([trajectory])])

    assert group.trajectories[0].tools == [
        {"type": "function", "function": {"name": "f", "parameters": {"required": ["a", "b"]}}}
    ]
    assert type(group.trajectories[0].reward) is float


def test_answers_to_learn_need_no_reward() -> None:
    trajectory = Trajectory(messages_and_choices=[{"role": "assistant", "content": "yes"}])
    trajectory.reward = None  # type: ignore[assignment]

    assert plain_trajectories([trajectory])[0].reward == 0.0


@pytest.mark.parametrize("entry", ["text", 7, make_choice("hi").message])
def test_what_is_no_message_stays_for_the_error_that_names_it(entry: Any) -> None:
    trajectory = Trajectory()
    trajectory.messages_and_choices.append(entry)

    (copy,) = plain_trajectories([trajectory])

    expected = {"role": "assistant", "content": "hi"} if isinstance(entry, BaseModel) else entry
    assert copy.messages_and_choices == [expected]
