"""A trajectory group whose rollouts have not run yet: what `TrajectoryGroup` gives for awaitables."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, TypeVar, cast

from art.gather_context import (
    find_non_number,
    get_gather_context,
    record_metrics,
    set_completion_tokens,
    set_gather_context,
)
from art.owned_tasks import close_unstarted, result_or_error, run_all

GroupT = TypeVar("GroupT")


class PendingTrajectoryGroup(Awaitable[GroupT], Generic[GroupT]):
    """Runs its rollouts when awaited, all at once, and gives the group.

    Failures become data of the group while the current gather context allows them. One too many is raised, after
    the other rollouts have been cancelled and have ended. Cancellation passes through.
    """

    def __init__(
        self,
        items: Sequence[object],
        *,
        trajectory_type: type[Any],
        build: Callable[[list[Any], list[BaseException]], GroupT],
    ) -> None:
        """Keep what is to be run.

        Args:
            items: Awaitables of trajectories; finished trajectories and exceptions may be among them.
            trajectory_type: What every awaitable must give.
            build: Makes the group of trajectories, in order of completion, and exceptions.
        """
        self._items = list(items)
        self._num_trajectories = len(self._items)
        self._trajectory_type = trajectory_type
        self._build = build

    def __await__(self) -> Generator[Any, None, GroupT]:
        return self._run().__await__()

    def close_unstarted(self) -> None:
        """Close the rollouts that have not started; for groups that will not be awaited."""
        close_unstarted(self._items)

    async def _run(self) -> GroupT:
        context = get_gather_context()
        trajectories: list[Any] = []
        exceptions: list[BaseException] = []

        async def settle(item: object) -> None:
            outcome = item
            if inspect.isawaitable(item):
                with set_gather_context(context.nested()):
                    outcome = await result_or_error(cast(Awaitable[object], item), limit_s=context.rollout_timeout_s)
                if not isinstance(outcome, self._trajectory_type | BaseException):
                    outcome = TypeError(f"a rollout returned {type(outcome).__name__}, not a Trajectory")
            if isinstance(outcome, self._trajectory_type):
                outcome = find_non_number(outcome) or outcome
            if isinstance(outcome, BaseException) and outcome is not item:
                context.count_failure(outcome)
            if isinstance(outcome, BaseException):
                exceptions.append(outcome)
            else:
                trajectories.append(outcome)
                if context.increment_pbar:
                    record_metrics(context, outcome)  # type: ignore[arg-type]  # checked against trajectory_type
                else:  # whoever counts this group as one also records what it returns
                    set_completion_tokens(outcome)  # type: ignore[arg-type]  # as above
            context.update_pbar(1)

        try:
            await run_all([settle(item) for item in self._items])
        finally:
            self.close_unstarted()
        return self._build(trajectories, exceptions)
