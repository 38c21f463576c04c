"""The mean of any numbers, without an error for those that are too large or infinite."""

from __future__ import annotations

import statistics
from collections.abc import Iterable


def mean(values: Iterable[float]) -> float:
    """Give the mean of at least one number; infinite where the sum is too large, NaN where infinities cancel out."""
    numbers = list(values)
    try:
        return statistics.fmean(numbers)
    except (OverflowError, ValueError):
        return sum(numbers) / len(numbers)
