"""Check what is handed over for training or logging, and say what was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from art.owned_tasks import close_unstarted
from art.trajectories import Trajectory, TrajectoryGroup


def require_groups(trajectory_groups: Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Give the groups as a list.

    Raises:
        TypeError: They are not finished, or something else than a group is among them.
    """
    refuse_unawaited(trajectory_groups)
    if isinstance(trajectory_groups, TrajectoryGroup):
        raise TypeError("training takes a list of TrajectoryGroups, got one group by itself: give [group]")
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
    return groups


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
