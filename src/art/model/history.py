"""Reading `history.jsonl`."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from statistics import fmean

logger = logging.getLogger(__name__)


def read_metric(history_path: Path, metric: str) -> dict[int, list[float]]:
    """Give all values of one metric by step; nothing where the file or the metric is absent.

    Lines that are not JSON, as a killed run may leave them, are passed over with a warning.
    """
    values: dict[int, list[float]] = {}
    if not history_path.exists():
        return values
    with history_path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as err:
                if line.strip():
                    logger.warning("history line passed over: path=%s line=%d cause=%s", history_path, number, err)
                continue
            value, step = row.get(metric), row.get("step")
            if isinstance(value, int | float) and not math.isnan(value) and isinstance(step, int):
                values.setdefault(step, []).append(float(value))
    return values


def best_step(history_path: Path, metric: str) -> int | None:
    """Give the step whose average of a metric is the highest, the later one of two that are equal.

    Returns:
        The step, or None where no line has the metric.
    """
    averages = {step: fmean(values) for step, values in read_metric(history_path, metric).items()}
    return max(averages, key=lambda step: (averages[step], step), default=None)
