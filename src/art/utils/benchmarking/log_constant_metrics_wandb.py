"""Show numbers that do not change with the step in W&B, to compare a training run with."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from art.errors import MissingDependencyError

STEP_METRIC = "training_step"


class NamedModel(Protocol):
    """What is asked of a model here."""

    name: str
    project: str


async def log_constant_metrics_wandb(
    model: NamedModel,
    num_steps: int,
    split_metrics: dict[str, dict[str, float]],
    logged_run_name: str | None = None,
) -> None:
    """Draw horizontal lines in W&B: log the same metrics at every step from 0 to `num_steps`.

    Args:
        model: Its project is logged to.
        num_steps: The last step.
        split_metrics: For each split, its metrics; they are logged as `{split}/{metric}`.
        logged_run_name: Name of the run; None: that of the model.

    Raises:
        MissingDependencyError: wandb is not installed.
    """
    row = {f"{split}/{name}": value for split, metrics in split_metrics.items() for name, value in metrics.items()}
    await asyncio.to_thread(_log, model.project, logged_run_name or model.name, row, num_steps)


def _log(project: str, name: str, row: dict[str, float], num_steps: int) -> None:
    try:
        import wandb
    except ImportError as err:
        raise MissingDependencyError("wandb", needed_for="log_constant_metrics_wandb", extra="wandb") from err
    # A run of its own, also while a model's is open.
    run: Any = wandb.init(project=project, name=name, reinit="create_new")
    try:
        run.define_metric(STEP_METRIC)
        for key in row:
            run.define_metric(key, step_metric=STEP_METRIC)
        for step in range(num_steps + 1):
            run.log({**row, STEP_METRIC: step})
    finally:
        run.finish()
