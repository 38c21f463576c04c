"""How a metric changes from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art.utils.benchmarking.charts.selection import PERFECT_SCORE_STYLE, import_pyplot, metric_curves
from art.utils.benchmarking.types import BenchmarkModelKey

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


def training_progress_chart(
    df: pl.DataFrame,
    metric_name: str,
    models: list[str | BenchmarkModelKey] | None = None,
    title: str | None = None,
    x_label: str | None = None,
    y_label: str | None = None,
    perfect_score: float | None = None,
    legend_loc: str | None = "lower right",
) -> Figure:
    """Draw a metric over the steps, a line for each model; one that has a single step is a dashed level.

    Args:
        df: Rows of `load_trajectories`, or averages of `load_aggregated_trajectories`.
        metric_name: A column, or the part of its name after `metric_`.
        models: What to show, in this order; a name means its split `val`. None: everything.
        title: Above the chart; None: the metric's name.
        x_label: Below it.
        y_label: Beside it; None: the metric's name.
        perfect_score: Draw a level that cannot be passed.
        legend_loc: Where the legend goes; None: no legend.

    Raises:
        DataError: There is no such column; a `ValueError` too.
        MissingDependencyError: matplotlib is not installed.
    """
    curves = metric_curves(df, metric_name, models)
    figure, axes = import_pyplot().subplots(figsize=(9, 5.5), layout="constrained")
    has_steps = any(len(points) > 1 for _, points in curves)
    for number, (name, points) in enumerate(curves):
        color = f"C{number}"
        if len(points) == 1 and has_steps:
            axes.axhline(points[0][1], color=color, linestyle="--", linewidth=1.8, label=name)
        else:
            axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=4, linewidth=2, label=name)
    if perfect_score is not None:
        axes.axhline(perfect_score, **PERFECT_SCORE_STYLE, label="perfect score")
    name = metric_name.removeprefix("metric_")
    axes.set_title(name if title is None else title)
    axes.set_xlabel("training step" if x_label is None else x_label)
    axes.set_ylabel(name if y_label is None else y_label)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if legend_loc is not None and axes.get_legend_handles_labels()[0]:
        axes.legend(loc=legend_loc)
    return figure  # type: ignore[no-any-return]  # pyplot is not typed here
