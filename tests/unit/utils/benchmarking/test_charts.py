from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
import pytest

from art.errors import MissingDependencyError
from art.utils.benchmarking.charts import percentage_comparison_bar_chart, training_progress_chart
from art.utils.benchmarking.types import BenchmarkModelKey


@pytest.fixture(autouse=True)
def drawing() -> Iterator[None]:
    mpl.use("agg")
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def table() -> pl.DataFrame:
    rows = [
        # step 0: group means 0.5 and 0.2; step 10: 0.9
        ("agent", "val", 0, 1, 0.0), ("agent", "val", 0, 1, 1.0), ("agent", "val", 0, 2, 0.2),
        ("agent", "val", 10, 3, 0.9),
        ("agent", "train", 5, 4, 0.4),
        ("gpt", "val", 0, 5, 0.6), ("gpt", "val", 0, 6, None),
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=["model", "split", "step", "group_number", "metric_right"], orient="row")


def lines(figure: Any) -> dict[str, list[tuple[float, float]]]:
    (axes,) = figure.axes
    return {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.lines}


def test_progress_has_a_line_for_each_model_and_a_level_for_one_step(tmp_path: Path) -> None:
    models: list[str | BenchmarkModelKey] = ["agent", BenchmarkModelKey("gpt", "GPT")]
    figure = training_progress_chart(table(), "right", models, perfect_score=1.0)
    drawn = lines(figure)
    assert drawn["agent"] == [(0, pytest.approx(0.35)), (10, 0.9)]
    assert [y for _, y in drawn["GPT"]] == [0.6, 0.6]
    assert [y for _, y in drawn["perfect score"]] == [1.0, 1.0]
    axes: Any = figure.axes[0]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("right", "training step", "right")
    figure.savefig(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_words_and_legend_are_the_callers() -> None:
    figure = training_progress_chart(table(), "metric_right", title="T", x_label="X", y_label="Y", legend_loc=None)
    axes: Any = figure.axes[0]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("T", "X", "Y")
    assert axes.get_legend() is None
    assert set(lines(figure)) >= {"agent (train)", "agent (val)", "gpt (val)"}


def test_bars_show_the_last_step_in_percent() -> None:
    figure = percentage_comparison_bar_chart(table(), "right", ["agent", "gpt"], num_decimals=1, perfect_score=1.0)
    axes: Any = figure.axes[0]
    assert [bar.get_height() for bar in axes.patches] == [90.0, 60.0]
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["90.0%", "60.0%"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["agent", "gpt"]
    assert [y for _, y in lines(figure)["perfect score"]] == [100.0, 100.0]


def test_two_splits_of_one_model_stay_apart() -> None:
    models: list[str | BenchmarkModelKey] = ["agent", BenchmarkModelKey("agent", split="train")]
    figure = percentage_comparison_bar_chart(table(), "right", models)
    axes: Any = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["90%", "40%"]


@pytest.mark.parametrize("draw", [training_progress_chart, percentage_comparison_bar_chart])
def test_missing_column_is_a_value_error_and_missing_model_is_reported(
    draw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=r"'wrong'.*metrics: right"):
        draw(table(), "wrong")
    with caplog.at_level(logging.WARNING):
        assert draw(table(), "right", ["absent"]).axes[0].lines[:] == []
    assert "absent has no value on split val" in caplog.text


def test_averages_can_be_drawn_as_they_are() -> None:
    averages = pl.DataFrame({"model": ["a", "a"], "split": ["val"] * 2, "step": [0, 1], "reward": [0.5, 0.75]})
    assert lines(training_progress_chart(averages, "reward"))["a"] == [(0, 0.5), (1, 0.75)]


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingDependencyError, match=r"openpipe-art\[plotting\]"):
        training_progress_chart(table(), "right")
