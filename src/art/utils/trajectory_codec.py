"""Trajectories as plain dicts and JSON text, and back: what the files that hold trajectories are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, TypeVar

from pydantic import BaseModel

from art.errors import DataError
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup
from art.types import MessageOrChoice

ItemT = TypeVar("ItemT", Trajectory, TrajectoryGroup)
_AS_STORED = frozenset({"metrics", "metadata"})


def to_json(value: Any) -> str:
    """Give JSON text in ASCII. Pydantic objects are dumped, numbers and arrays of any library become numbers.

    Other foreign objects become text.
    """
    return json.dumps(value, default=_jsonable)


def entry_to_dict(entry: Any) -> dict[str, Any]:
    """Give a message or Choice as a new dict with everything in it, logprobs included.

    Raises:
        DataError: It is neither.
    """
    if isinstance(entry, BaseModel):
        return entry.model_dump(mode="json", exclude_unset=True, warnings=False)
    if not isinstance(entry, Mapping):
        raise DataError(f"a conversation holds messages (dicts with a role) and Choices, not a {type(entry).__name__}")
    return dict(entry)


def message_or_choice_to_dict(message_or_choice: MessageOrChoice) -> dict[str, Any]:
    """Give a message or Choice as a new dict without logprobs."""
    fields = entry_to_dict(message_or_choice)
    fields.pop("logprobs", None)
    return fields


def dict_to_message_or_choice(d: dict[str, Any]) -> MessageOrChoice:
    """Give back what `message_or_choice_to_dict` was given; a dict without a role, but with a message, is a Choice."""
    return Trajectory.model_validate({"messages_and_choices": [d]}).messages_and_choices[0]


def history_to_dict(history: History) -> dict[str, Any]:
    """Give a history as a plain dict without logprobs."""
    return {
        "messages_and_choices": [message_or_choice_to_dict(entry) for entry in history.messages_and_choices],
        "tools": history.tools,
    }


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """Give a trajectory as a plain dict without logprobs; policy versions only where they are known."""
    fields: dict[str, Any] = {
        "messages_and_choices": [message_or_choice_to_dict(entry) for entry in trajectory.messages_and_choices],
        "reward": trajectory.reward,
        "metrics": dict(trajectory.metrics),
        "metadata": dict(trajectory.metadata),
        "logs": list(trajectory.logs),
        "tools": trajectory.tools,
        "additional_histories": [history_to_dict(history) for history in trajectory.additional_histories],
    }
    for name in ("initial_policy_version", "final_policy_version"):
        if getattr(trajectory, name) is not None:
            fields[name] = getattr(trajectory, name)
    return fields


def trajectory_group_to_dict(trajectory_group: TrajectoryGroup) -> dict[str, Any]:
    """Give a group as a plain dict without logprobs; what describes the group as a whole only where there is any."""
    fields: dict[str, Any] = {
        "trajectories": [trajectory_to_dict(trajectory) for trajectory in trajectory_group.trajectories]
    }
    for name in ("metadata", "metrics", "logs"):
        if getattr(trajectory_group, name):
            fields[name] = getattr(trajectory_group, name).copy()
    if trajectory_group.exceptions:
        fields["exceptions"] = [exception.model_dump() for exception in trajectory_group.exceptions]
    return fields


def dict_to_trajectory(d: dict[str, Any]) -> Trajectory:
    """Give back the trajectory that `trajectory_to_dict` was given, logprobs aside. Missing keys take defaults."""
    given = {name: d[name] for name in Trajectory.model_fields.keys() - _AS_STORED if d.get(name) is not None}
    if "additional_histories" in given:
        given["additional_histories"] = [
            History(messages_and_choices=history["messages_and_choices"], tools=history.get("tools"))
            for history in given["additional_histories"]
        ]
    return with_stored_facts(Trajectory(**given), metrics=d.get("metrics"), metadata=d.get("metadata"))


def dict_to_trajectory_group(d: dict[str, Any]) -> TrajectoryGroup:
    """Give back the group that `trajectory_group_to_dict` was given, logprobs aside."""
    return make_group(
        [dict_to_trajectory(trajectory) for trajectory in d["trajectories"]],
        exceptions=d.get("exceptions"),
        metadata=d.get("metadata"),
        metrics=d.get("metrics"),
        logs=d.get("logs"),
    )


def make_group(
    trajectories: list[Trajectory],
    *,
    exceptions: list[dict[str, str]] | None,
    metadata: dict[str, Any] | None,
    metrics: dict[str, Any] | None,
    logs: list[str] | None,
) -> TrajectoryGroup:
    """Build a group of finished trajectories and stored exceptions."""
    group = with_stored_facts(TrajectoryGroup(trajectories, logs=logs), metrics=metrics, metadata=metadata)
    group.exceptions = [PydanticException(**exception) for exception in exceptions or []]
    return group


def with_stored_facts(item: ItemT, *, metrics: dict[str, Any] | None, metadata: dict[str, Any] | None) -> ItemT:
    """Give a trajectory or group its stored metrics and metadata, unchecked.

    A script may have assigned what the constructor refuses, and what was written must be readable.
    """
    item.metrics, item.metadata = metrics or {}, metadata or {}
    return item


def _jsonable(value: Any) -> Any:
    if callable(to_python := getattr(value, "tolist", None)):  # scalars and arrays of numpy, torch and the like
        return to_python()
    if isinstance(value, Real | Decimal):
        return float(value)
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, exclude_none=False, bytes_mode="base64", fallback=str)
