"""Choose the models and splits of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art.utils.benchmarking.types import BenchmarkModelKey

if TYPE_CHECKING:
    import polars as pl


def filter_rename_model_split(df: pl.DataFrame, models: list[BenchmarkModelKey]) -> pl.DataFrame:
    """Keep the rows of these models on their splits, in this order, with display names in the column `model`."""
    import polars as pl

    parts = [
        df.filter(model=key.name, split=key.split).with_columns(pl.lit(key.display_name).alias("model"))
        for key in models
    ]
    return pl.concat(parts) if parts else df.clear()
