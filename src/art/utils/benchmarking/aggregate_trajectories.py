"""Averages of logged trajectories, by model, split and step."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.utils.benchmarking.load_trajectories import load_trajectories
from art.utils.output_dirs import get_models_dir

if TYPE_CHECKING:
    import polars as pl

logger = logging.getLogger(__name__)

STEP_KEYS = ["model", "split", "step"]
METRIC_PREFIX = "metric_"
REWARD_STD_DEV = "metric_reward_std_dev"
_HISTORY_FILE = "history.jsonl"


async def load_aggregated_trajectories(
    project_name: str,
    models: list[str] | None = None,
    metrics: list[str] | None = None,
    art_path: str | None = None,
    include_history: bool = False,
) -> pl.DataFrame:
    """Average the trajectories of a project: within each group first, then over the groups of a step.

    Args:
        project_name: The project.
        models: Which models; None: all.
        metrics: Which metrics, with or without `metric_` before them; None: all.
        art_path: Where runs are kept; None: the default place.
        include_history: Add `recorded_at`, when the step was last logged (local time; null where that is not known).

    Returns:
        A row for each model, split and step, in this order: `reward`, `metric_{name}`, and, where a metric is called
        reward, `metric_reward_std_dev`: the standard deviation (of the population) within a group, averaged over the
        groups of more than one trajectory.
    """
    frame = aggregate(await load_trajectories(project_name, models, art_path=art_path), metrics)
    if include_history:
        frame = await asyncio.to_thread(_with_times, frame, Path(get_models_dir(project_name, art_path)))
    return frame


async def load_latest_metrics(
    project_name: str,
    models: list[str] | None = None,
    split: str = "val",
    metrics: list[str] | None = None,
    art_path: str | None = None,
) -> pl.DataFrame:
    """Average the trajectories of each model's last step on one split; arguments as for the function above."""
    frame = await load_aggregated_trajectories(project_name, models, metrics, art_path)
    return latest_steps(frame.filter(split=split))


def aggregate(frame: pl.DataFrame, metrics: list[str] | None = None) -> pl.DataFrame:
    """Average the rows of `load_trajectories` over groups and steps."""
    import polars as pl

    wanted = None if metrics is None else {METRIC_PREFIX + name.removeprefix(METRIC_PREFIX) for name in metrics}
    names = [name for name in frame.columns if name.startswith(METRIC_PREFIX) and (wanted is None or name in wanted)]
    for missing in sorted((wanted or set()) - set(names) - {"metric_reward"}):
        logger.warning("no trajectory has the metric %s", missing.removeprefix(METRIC_PREFIX))
    spread = []
    if "metric_reward" in names:
        column = pl.col("metric_reward")
        spread = [pl.when(column.count() > 1).then(column.std(ddof=0)).alias(REWARD_STD_DEV)]
    by_group = frame.group_by([*STEP_KEYS, "group_number"]).agg(pl.col("reward", *names).mean(), *spread)
    return by_group.group_by(STEP_KEYS).agg(pl.exclude("group_number").mean()).sort(STEP_KEYS)


def latest_steps(frame: pl.DataFrame) -> pl.DataFrame:
    """Keep the rows of each model's last step."""
    import polars as pl

    return frame.filter(pl.col("step") == pl.col("step").max().over("model")).sort("model")


def _with_times(frame: pl.DataFrame, models_dir: Path) -> pl.DataFrame:
    import polars as pl

    times: dict[tuple[str, str, int], datetime] = {}
    for model in frame["model"].unique():
        times |= {(model, *key): time for key, time in _read_times(models_dir / model / _HISTORY_FILE).items()}
    recorded = [times.get((row["model"], row["split"], row["step"])) for row in frame.select(STEP_KEYS).to_dicts()]
    return frame.with_columns(pl.Series("recorded_at", recorded, dtype=pl.Datetime("us")))


def _read_times(history_path: Path) -> dict[tuple[str, int], datetime]:
    times: dict[tuple[str, int], datetime] = {}
    lines = history_path.read_text(encoding="utf-8").splitlines() if history_path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            row: dict[str, Any] = json.loads(line)
            step, time = int(row["step"]), datetime.fromisoformat(row["recorded_at"]).replace(tzinfo=None)
        except (KeyError, TypeError, ValueError) as err:
            logger.warning("line %d of %s left out: %r", number, history_path, err)
            continue
        for split in {key.partition("/")[0] for key in row if "/" in key}:
            times[split, step] = time
    return times
