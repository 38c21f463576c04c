"""Copies of trajectories with nothing in them but what training needs, in types that every process knows.

Scripts extend `Trajectory`, put objects of their own into messages, and use Choices of other libraries. The process
that trains must need no module of theirs: it often could not import it, and importing a script runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from pydantic import BaseModel

from art.conversation import is_choice, is_message_object, load_choice
from art.trajectories import History, Trajectory, TrajectoryGroup
from art.types import Choice


def plain_groups(groups: Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Copy groups: their trajectories, and the failures of the others."""
    return [
        TrajectoryGroup.model_construct(
            trajectories=plain_trajectories(group.trajectories), exceptions=group.exceptions
        )
        for group in groups
    ]


def plain_trajectories(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Copy the conversations, tools and rewards of trajectories.

    What is no message stays as it is, to be named by whoever reads it.
    """
    return [
        Trajectory.model_construct(
            messages_and_choices=[_plain_entry(entry) for entry in trajectory.messages_and_choices],
            tools=_plain(trajectory.tools),
            additional_histories=[
                History.model_construct(
                    messages_and_choices=[_plain_entry(entry) for entry in history.messages_and_choices],
                    tools=_plain(history.tools),
                )
                for history in trajectory.additional_histories
            ],
            reward=float(trajectory.reward or 0.0),  # None where there is nothing to score
            start_time=trajectory.start_time,  # a default that is made takes pydantic longer than all the rest
        )
        for trajectory in trajectories
    ]


def _plain_entry(entry: Any) -> Any:
    if type(entry) is Choice:
        return entry
    if is_choice(entry):
        return load_choice(entry.model_dump(mode="json", warnings=False))
    return _plain(entry) if isinstance(entry, Mapping) or is_message_object(entry) else entry


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True, warnings=False)
    return value
