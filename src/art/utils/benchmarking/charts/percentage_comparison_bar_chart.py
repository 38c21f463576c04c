"""How models compare in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art.utils.benchmarking.charts.selection import PERFECT_SCORE_STYLE, import_pyplot, metric_curves
from art.utils.benchmarking.types import BenchmarkModelKey

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


def percentage_comparison_bar_chart(
    df: pl.DataFrame,
    metric_name: str,
    models: list[str | BenchmarkModelKey] | None = None,
    title: str | None = None,
    y_label: str | None = None,
    perfect_score: float | None = None,
    num_decimals: int = 0,
) -> Figure:
    """Draw a bar for each model: its metric at its last step, in percent.

    Args:
        df: Rows of `load_trajectories`, or averages of `load_aggregated_trajectories`.
        metric_name: A column, or the part of its name after `metric_`; 1 is 100 %.
        models: What to show, in this order; a name means its split `val`. None: everything.
        title: Above the chart; None: the metric's name.
        y_label: Beside it; None: the metric's name.
        perfect_score: Draw a level that cannot be passed; 1 is 100 %.
        num_decimals: Decimals of the numbers above the bars.

    Raises:
        DataError: There is no such column; a `ValueError` too.
        MissingDependencyError: matplotlib is not installed.
    """
    curves = metric_curves(df, metric_name, models)
    places = range(len(curves))
    figure, axes = import_pyplot().subplots(figsize=(max(6.0, 1.0 + 1.3 * len(curves)), 5), layout="constrained")
    percents = [100 * points[-1][1] for _, points in curves]
    bars = axes.bar(places, percents, color=[f"C{place}" for place in places], width=0.65)
    axes.set_xticks(places, [name for name, _ in curves])
    axes.bar_label(bars, fmt=f"%.{num_decimals}f%%", padding=3)
    if perfect_score is not None:
        axes.axhline(100 * perfect_score, **PERFECT_SCORE_STYLE, label="perfect score")
        axes.legend(loc="upper left")
    name = metric_name.removeprefix("metric_")
    axes.set_title(name if title is None else title)
    axes.set_ylabel(name if y_label is None else y_label)
    axes.yaxis.set_major_formatter("{x:g}%")
    axes.margins(y=0.12)
    if len(curves) > 4:
        axes.tick_params(axis="x", labelrotation=30)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure  # type: ignore[no-any-return]  # pyplot is not typed here
