"""Let code deep inside a rollout hand out the trajectory: `yield_trajectory`, `capture_yielded_trajectory`."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Coroutine
from typing import Any

from art.trajectories import Trajectory

logger = logging.getLogger(__name__)


class YieldTrajectoryContext:
    """Holds what `yield_trajectory` stored last while the block runs, also from tasks started in it."""

    def __init__(self) -> None:
        self.trajectory: Trajectory | None = None
        self._token: contextvars.Token[YieldTrajectoryContext | None] | None = None

    def __enter__(self) -> None:
        self._token = yield_trajectory_context_var.set(self)

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if self._token is not None:
            yield_trajectory_context_var.reset(self._token)
            self._token = None


yield_trajectory_context_var: contextvars.ContextVar[YieldTrajectoryContext | None] = contextvars.ContextVar(
    "yield_trajectory_context", default=None
)


def yield_trajectory(trajectory: Trajectory) -> None:
    """Store a trajectory for the `capture_yielded_trajectory` that this code runs in; outside one, do nothing."""
    context = yield_trajectory_context_var.get()
    if context is None:
        logger.debug("yield_trajectory was called outside capture_yielded_trajectory; nobody takes the trajectory")
        return
    context.trajectory = trajectory


async def capture_yielded_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Run a coroutine and give the trajectory that it yielded last.

    Raises:
        RuntimeError: It yielded none.
    """
    context = YieldTrajectoryContext()
    with context:
        await coroutine
    if context.trajectory is None:
        raise RuntimeError("no trajectory: the coroutine ended without calling art.yield_trajectory()")
    return context.trajectory
