"""What both charts do with a table before they draw."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from art.errors import DataError, MissingDependencyError
from art.utils.benchmarking.filter_model_split import filter_rename_model_split
from art.utils.benchmarking.types import BenchmarkModelKey

if TYPE_CHECKING:
    import polars as pl

logger = logging.getLogger(__name__)

PERFECT_SCORE_STYLE: dict[str, Any] = {"color": "0.45", "linestyle": ":", "linewidth": 1.5}


def import_pyplot() -> Any:
    """Give matplotlib's pyplot.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as err:
        raise MissingDependencyError("matplotlib", needed_for="charts", extra="plotting") from err
    return plt


def metric_curves(
    df: pl.DataFrame, metric_name: str, models: Sequence[str | BenchmarkModelKey] | None
) -> list[tuple[str, list[tuple[int, float]]]]:
    """Average a metric within each group, then over the groups of each step.

    Args:
        df: Rows of `load_trajectories`, or averages of `load_aggregated_trajectories`.
        metric_name: A column, or the part of its name after `metric_`.
        models: What to show, in this order; None: every model on every split that it has.

    Returns:
        Display names with their (step, value) pairs, by step. A model without a value is left out and reported.

    Raises:
        DataError: There is no such column; a `ValueError` too.
    """
    import polars as pl

    column = next((name for name in (metric_name, f"metric_{metric_name}") if name in df.columns), None)
    if column is None:
        known = [name.removeprefix("metric_") for name in df.columns if name.startswith("metric_")]
        raise DataError(f"there is no column {metric_name!r} or 'metric_{metric_name}'; metrics: {', '.join(known)}")
    curves = []
    for key in _keys(df, models):
        rows = filter_rename_model_split(df, [key]).filter(pl.col(column).is_not_null())
        if rows.is_empty():
            logger.warning("chart of %s: model %s has no value on split %s", metric_name, key.name, key.split)
            continue
        if "group_number" in rows.columns:
            rows = rows.group_by("step", "group_number").agg(pl.col(column).mean())
        by_step = rows.group_by("step").agg(pl.col(column).mean()).sort("step")
        points = list(zip(by_step["step"].to_list(), by_step[column].to_list(), strict=True))
        curves.append((key.display_name, points))
    return curves


def _keys(df: pl.DataFrame, models: Sequence[str | BenchmarkModelKey] | None) -> list[BenchmarkModelKey]:
    if models is not None:
        return [model if isinstance(model, BenchmarkModelKey) else BenchmarkModelKey(model) for model in models]
    pairs = df.select("model", "split").unique().sort("model", "split").rows()
    has_one_split = len({split for _, split in pairs}) == 1
    return [BenchmarkModelKey(model, model if has_one_split else f"{model} ({split})", split) for model, split in pairs]
