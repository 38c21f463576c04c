"""Which checkpoints a pipeline keeps: what a strategy is told, and the strategy that most runs want."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeAlias

from pydantic import BaseModel, Field

from art.errors import ConfigurationError

__all__ = [
    "CHECKPOINT_CREATED_AT_METRIC",
    "CHECKPOINT_EVAL_COMPLETED_METRIC",
    "CHECKPOINT_SAVED_METRIC",
    "CheckpointInfo",
    "CheckpointRetentionContext",
    "CheckpointRetentionStrategy",
    "keep_recent_and_top",
]

CHECKPOINT_SAVED_METRIC = "checkpoint/saved"
CHECKPOINT_CREATED_AT_METRIC = "checkpoint/created_at_unix"
CHECKPOINT_EVAL_COMPLETED_METRIC = "checkpoint/eval_completed"


class CheckpointInfo(BaseModel):
    """One checkpoint that may be deleted.

    Attributes:
        step: Its step.
        path: Its folder.
        created_at: When it was saved, in UTC.
        is_eval_step: Whether it was evaluated.
        metrics: Averages of what the history says of its step, such as `val/reward`.
    """

    step: int
    path: str
    created_at: datetime
    is_eval_step: bool = False
    metrics: dict[str, float] = Field(default_factory=dict)


class CheckpointRetentionContext(BaseModel):
    """What a strategy decides about.

    Attributes:
        current_step: The step that is served.
        checkpoints: Those that may be deleted, by step. What is served, leased, or evaluated now or later is not
            among them, and stays.
    """

    current_step: int
    checkpoints: list[CheckpointInfo] = Field(default_factory=list)


CheckpointRetentionStrategy: TypeAlias = Callable[[CheckpointRetentionContext], Iterable[int]]
"""Gives the steps to keep among those of the context."""


def keep_recent_and_top(*, recent: int = 5, top: int = 2, metric: str = "val/reward") -> CheckpointRetentionStrategy:
    """Make a strategy that keeps the newest checkpoints, and those with the highest value of a metric.

    Args:
        recent: How many of the newest to keep.
        top: How many of the best to keep; of two that are equal the later one. Without a value none is among the best.
        metric: Which metric of the history decides.

    Raises:
        ConfigurationError: A number is negative.
    """
    if recent < 0 or top < 0:
        raise ConfigurationError(f"recent={recent} and top={top} must not be negative")

    def choose(context: CheckpointRetentionContext) -> set[int]:
        steps = sorted((checkpoint.step for checkpoint in context.checkpoints), reverse=True)
        values = {c.step: c.metrics[metric] for c in context.checkpoints if metric in c.metrics}
        best = sorted(values, key=lambda step: (values[step], step), reverse=True)
        return {*steps[:recent], *best[:top]}

    return choose
