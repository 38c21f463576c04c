"""How many rollouts in a row may fail before a run ends."""

from __future__ import annotations

import logging

from art.errors import RolloutError, TooManyRolloutFailuresError
from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

KEPT_CAUSES = 8


class FailedGroups:
    """Counts groups that failed entirely since the last one that did not.

    Attributes:
        total: All of them, in this run.
    """

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._limit = limit
        self._in_a_row = 0
        self._causes: list[BaseException] = []
        self._any_succeeded = False

    def note_success(self) -> None:
        """Begin to count anew."""
        self._any_succeeded = True
        self._in_a_row = 0
        self._causes.clear()

    def note_failure(self, cause: BaseException) -> None:
        """Count one.

        Raises:
            TooManyRolloutFailuresError: It was one too many.
        """
        self.total += 1
        self._in_a_row += 1
        if len(self._causes) < KEPT_CAUSES:
            self._causes.append(cause)
        if self._in_a_row >= self._limit:
            raise self._error(f"{self._in_a_row} groups in a row failed (limit: max_failed_groups={self._limit})")

    def require_any_success(self) -> None:
        """Make sure, at the end of the scenarios, that not every single group failed.

        Raises:
            TooManyRolloutFailuresError: All did.
        """
        if self.total and not self._any_succeeded:
            raise self._error(f"all {self.total} groups of the run failed")

    def _error(self, what: str) -> TooManyRolloutFailuresError:
        first = self._causes[0]
        error = TooManyRolloutFailuresError(
            f"{what}; the first because of {type(first).__name__}: {first}", list(self._causes)
        )
        error.__cause__ = first
        return error


def cause_of(group: TrajectoryGroup) -> RolloutError | None:
    """Give the first failure of a group of which nothing else came; None for any other group."""
    if group.trajectories or not group.exceptions:
        return None
    first = group.exceptions[0]
    return RolloutError(f"{first.type}: {first.message}\n{first.traceback}".rstrip())
