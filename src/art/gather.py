"""Run many rollouts at once and collect what they give: `gather_trajectories`, `gather_trajectory_groups`.

Results keep the input order. Failures become data while the allowance lasts; the failure that exceeds it is raised
after all other rollouts have been cancelled and have ended. A dead server or trainer ends the gather at once.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable, Iterable
from numbers import Real
from typing import Any, Literal, TypeAlias, cast, overload

from art.gather_context import (
    FATAL_ROLLOUT_ERRORS,
    GatherContext,
    find_non_number,
    gather_context_var,
    get_gather_context,
    progress_bar,
    record_metrics,
    set_gather_context,
)
from art.owned_tasks import close_unstarted, result_or_error, run_all
from art.pending_group import PendingTrajectoryGroup
from art.trajectories import Trajectory, TrajectoryGroup

__all__ = [
    "FATAL_ROLLOUT_ERRORS",
    "GatherContext",
    "gather_context_var",
    "gather_trajectories",
    "gather_trajectory_groups",
    "get_gather_context",
    "record_metrics",
    "set_gather_context",
    "wrap_group_awaitable",
    "wrap_trajectories_awaitable",
]

AfterEach: TypeAlias = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup | list[TrajectoryGroup] | None]]


async def gather_trajectory_groups(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
) -> list[TrajectoryGroup]:
    """Run all groups at once and give them in input order.

    Args:
        groups: Groups made of awaitables, or coroutines that give a group (each counts one on the bar).
        pbar_desc: Text before the progress bar; None shows no bar.
        pbar_total_completion_tokens: Deprecated, without effect.
        max_exceptions: Failed rollouts allowed: a number, or a share of the bar's total when below 1. Failures that
            are allowed stay in the `exceptions` of their group; a coroutine that fails as a whole gives no group.
        max_metrics: How many trajectory metrics the bar shows beside the reward; None for all.
        after_each: Called with each finished group; what it gives takes the group's place (None drops it, a list is
            spliced in). Its own errors are not covered by `max_exceptions`.

    Raises:
        Exception: The failure that exceeded the allowance, or one of `FATAL_ROLLOUT_ERRORS`.
    """
    warn_of_total_completion_tokens(pbar_total_completion_tokens)
    check_allowance("max_exceptions", max_exceptions)
    pending = _as_awaitables(groups, "art.gather_trajectory_groups(art.TrajectoryGroup(…) for … in …)")
    with progress_bar(pbar_desc, sum(map(count_trajectories, pending))) as bar:
        context = GatherContext(pbar=bar, max_metrics=max_metrics, max_exceptions=max_exceptions)
        with set_gather_context(context):
            try:
                finished = await run_all([_finish_group(group, after_each) for group in pending])
            finally:
                close_unstarted(pending)
    return [group for replacements in finished for group in replacements]


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: Literal[0] = 0,
) -> list[Trajectory]: ...


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float,
) -> list[Trajectory | BaseException]: ...


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Iterable[Trajectory]]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: Literal[0] = 0,
) -> list[list[Trajectory]]: ...


@overload
async def gather_trajectories(
    trajectories: Iterable[Awaitable[Iterable[Trajectory]]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float,
) -> list[list[Trajectory] | BaseException]: ...


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]] | Iterable[Awaitable[Iterable[Trajectory]]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
) -> (
    list[Trajectory]
    | list[Trajectory | BaseException]
    | list[list[Trajectory]]
    | list[list[Trajectory] | BaseException]
):
    """Run all rollouts at once and give their results in input order.

    Args:
        trajectories: Awaitables of a trajectory, or of several.
        pbar_desc: Text before the progress bar; None shows no bar.
        pbar_total_completion_tokens: Deprecated, without effect.
        max_exceptions: Failures allowed: a number, or a share of all when below 1. An allowed failure takes the
            place of its result.

    Raises:
        Exception: The failure that exceeded the allowance, or one of `FATAL_ROLLOUT_ERRORS`.
    """
    warn_of_total_completion_tokens(pbar_total_completion_tokens)
    check_allowance("max_exceptions", max_exceptions)
    pending = _as_awaitables(trajectories, "art.gather_trajectories(rollout(…) for … in …)")
    with progress_bar(pbar_desc, sum(map(count_trajectories, pending))) as bar:
        context = GatherContext(pbar=bar, max_exceptions=max_exceptions)
        with set_gather_context(context):
            try:
                results = await run_all([wrap_trajectories_awaitable(awaitable) for awaitable in pending])
            finally:
                close_unstarted(pending)
    return cast("list[Trajectory]", results)  # the overloads say which of the four it is


async def wrap_group_awaitable(awaitable: Awaitable[TrajectoryGroup]) -> TrajectoryGroup | None:
    """Await a group within the current gather context: count it, or its failure.

    Returns:
        The group, or None for a coroutine that failed within the allowance.

    Raises:
        Exception: The failure that exceeded the allowance, or one of `FATAL_ROLLOUT_ERRORS`.
    """
    if isinstance(awaitable, PendingTrajectoryGroup):  # counts its rollouts by itself
        return cast(TrajectoryGroup, await awaitable)
    context = get_gather_context()
    with set_gather_context(context.nested()):
        outcome: object = await result_or_error(awaitable, limit_s=context.rollout_timeout_s)
    if not isinstance(outcome, TrajectoryGroup | Exception):
        hint = "; for single rollouts use art.gather_trajectories" if isinstance(outcome, Trajectory) else ""
        outcome = TypeError(f"expected a TrajectoryGroup, got {type(outcome).__name__}{hint}")
    if isinstance(outcome, TrajectoryGroup):
        outcome = next(filter(None, map(find_non_number, outcome.trajectories)), outcome)
    if isinstance(outcome, Exception):
        context.count_failure(outcome)
    else:
        _record_all(context, outcome.trajectories)
    context.update_pbar(1)
    return None if isinstance(outcome, Exception) else outcome


async def wrap_trajectories_awaitable(
    awaitable: Awaitable[Trajectory] | Awaitable[Iterable[Trajectory]],
) -> Trajectory | list[Trajectory] | BaseException:
    """Await one or several trajectories within the current gather context: count them, or their failure.

    Returns:
        What was awaited, several trajectories as a list; the error for a failure within the allowance.

    Raises:
        Exception: The failure that exceeded the allowance, or one of `FATAL_ROLLOUT_ERRORS`.
    """
    if isinstance(awaitable, PendingTrajectoryGroup):  # counts its rollouts by itself
        return list(await awaitable)
    context = get_gather_context()
    with set_gather_context(context.nested()):
        result = await result_or_error(cast(Awaitable[object], awaitable), limit_s=context.rollout_timeout_s)
    outcome = _checked_trajectories(result)
    if isinstance(outcome, BaseException):
        context.count_failure(outcome)
    else:
        _record_all(context, [outcome] if isinstance(outcome, Trajectory) else outcome)
    context.update_pbar(1)
    return outcome


def count_trajectories(awaitable: object) -> int:
    """Give the number of trajectories that an awaitable adds to the bar; 1 where it does not say."""
    return awaitable._num_trajectories if isinstance(awaitable, PendingTrajectoryGroup) else 1


def check_allowance(name: str, allowed: object) -> None:
    """Refuse an allowance of failures that is no number.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(allowed, Real):
        raise TypeError(f"{name} must be a number, or a share below 1, got {allowed!r}")


def _as_awaitables(given: Any, right_call: str) -> list[Any]:
    """List what is to be awaited, and say what was probably meant where something else was given."""
    if inspect.isawaitable(given) or not isinstance(given, Iterable):
        close_unstarted([given])
        raise TypeError(f"expected several awaitables, got one {type(given).__name__}: write {right_call}")
    pending = list(given)
    for item in pending:
        if not inspect.isawaitable(item):
            close_unstarted(pending)
            uncalled = f": call it, as in {item.__name__}(…)" if inspect.isroutine(item) else f": write {right_call}"
            raise TypeError(f"expected awaitables, got a {type(item).__name__} among them{uncalled}")
    return pending


def warn_of_total_completion_tokens(is_given: bool) -> None:
    """Tell users of the parameter `pbar_total_completion_tokens` that it does nothing."""
    if is_given:
        warnings.warn(
            "pbar_total_completion_tokens has no effect; the bar shows the mean of completion_tokens",
            DeprecationWarning,
            stacklevel=3,
        )


async def _finish_group(group: Awaitable[TrajectoryGroup], after_each: AfterEach | None) -> list[TrajectoryGroup]:
    finished = await wrap_group_awaitable(group)
    if finished is None:
        return []
    if after_each is None:
        return [finished]
    with set_gather_context(GatherContext()):  # rollouts that it may run are not part of this gather
        replacement: object = after_each(finished)
        if inspect.isawaitable(replacement):  # a plain function does as well
            replacement = await replacement
    if replacement is None:
        return []
    replacements: list[Any] = replacement if isinstance(replacement, list) else [replacement]
    for each in replacements:
        if not isinstance(each, TrajectoryGroup):
            raise TypeError(
                f"after_each must give a TrajectoryGroup, a list of them, or None, got {type(each).__name__}"
            )
    return replacements


def _checked_trajectories(outcome: object) -> Trajectory | list[Trajectory] | BaseException:
    if isinstance(outcome, BaseException):
        return outcome
    # A trajectory is iterable too: over its fields.
    is_one = isinstance(outcome, Trajectory) or not isinstance(outcome, Iterable)
    several: list[object] = [outcome] if is_one else list(cast("Iterable[object]", outcome))
    trajectories = [item for item in several if isinstance(item, Trajectory)]
    if len(trajectories) < len(several):
        return TypeError(f"a rollout returned {type(outcome).__name__}, not a Trajectory or several")
    complaint = next(filter(None, map(find_non_number, trajectories)), None)
    if complaint is not None:
        return complaint
    return outcome if isinstance(outcome, Trajectory) else trajectories


def _record_all(context: GatherContext, trajectories: Iterable[Trajectory]) -> None:
    for trajectory in trajectories:
        record_metrics(context, trajectory)
