"""Check what is handed over for training or logging, and say what was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel

from art.owned_tasks import close_unstarted
from art.trajectories import Trajectory, TrajectoryGroup

ConfigT = TypeVar("ConfigT", bound=BaseModel)


def require_groups(trajectory_groups: Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Give the groups as a list.

    Raises:
        TypeError: They are not finished, something else than a group is among them, or a reward is no number.
    """
    refuse_unawaited(trajectory_groups)
    if isinstance(trajectory_groups, TrajectoryGroup):
        raise TypeError("training takes a list of TrajectoryGroups, got one group by itself: give [group]")
    if not isinstance(trajectory_groups, Iterable):
        raise TypeError(f"training takes a list of TrajectoryGroups, got {trajectory_groups!r}")
    groups: list[Any] = list(trajectory_groups)
    for group in groups:
        if isinstance(group, TrajectoryGroup):
            continue
        close_unstarted(groups)
        if isinstance(group, Trajectory):
            hint = "rewards are compared within a group: give [art.TrajectoryGroup(trajectories)]"
        else:
            hint = "run them first: `groups = await art.gather_trajectory_groups(…)`"
        raise TypeError(f"training takes TrajectoryGroups that were awaited, got a {type(group).__name__}; {hint}")
    for position, group in enumerate(groups):
        for index, trajectory in enumerate(group.trajectories):
            number_of(f"reward of trajectory {index} in group {position}", trajectory.reward)
    return groups


def number_of(what: str, value: Any) -> float:
    """Give a number of any library as a float.

    Args:
        what: Names it in the error.
        value: What may be a number.

    Raises:
        TypeError: It is none.
    """
    try:
        if isinstance(value, str):
            raise TypeError("text")
        return float(value)
    except (TypeError, ValueError, OverflowError) as err:
        raise TypeError(f"{what} must be a number, got {value!r}") from err


def require_config(config: Any, config_type: type[ConfigT]) -> ConfigT:
    """Give the settings of a step; None for the defaults.

    Raises:
        TypeError: They are of another type.
    """
    if config is None:
        return config_type()
    if not isinstance(config, config_type):
        raise TypeError(
            f"config must be an art.{config_type.__name__}, such as art.{config_type.__name__}(learning_rate=1e-5), "
            f"got a {type(config).__name__}; further options are a dict and go to `_config=`"
        )
    return config


def refuse_unawaited(given: object) -> None:
    """Refuse a call whose `await` was forgotten.

    Raises:
        TypeError: It is one.
    """
    if inspect.isawaitable(given) and not isinstance(given, TrajectoryGroup):
        close_unstarted([given])
        raise TypeError(
            f"got a {type(given).__name__} that was not awaited: write `await`, as in "
            "`groups = await art.gather_trajectory_groups(…)`"
        )
