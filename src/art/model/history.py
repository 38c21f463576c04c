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
    numbers = read_numbers(history_path)
    return {step: values[metric] for step, values in numbers.items() if metric in values}


def read_numbers(history_path: Path) -> dict[int, dict[str, list[float]]]:
    """Give all values of all metrics, by step and metric; see `read_metric`."""
    numbers: dict[int, dict[str, list[float]]] = {}
    if not history_path.exists():
        return numbers
    with history_path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as err:
                if line.strip():
                    logger.warning("history line passed over: path=%s line=%d cause=%s", history_path, number, err)
                continue
            step = row.get("step")
            if not isinstance(step, int):
                continue
            for metric, value in row.items():
                if isinstance(value, int | float) and not math.isnan(value):
                    numbers.setdefault(step, {}).setdefault(metric, []).append(float(value))
    return numbers


def best_step(history_path: Path, metric: str) -> int | None:
    """Give the step whose average of a metric is the highest, the later one of two that are equal.

    Returns:
        The step, or None where no line has the metric.
    """
    return next(iter(best_steps(history_path, metric)), None)


def best_steps(history_path: Path, metric: str) -> list[int]:
    """Give the steps that have a metric, the one with the highest average first; of two that are equal, the later."""
    averages = {step: fmean(values) for step, values in read_metric(history_path, metric).items()}
    return sorted(averages, key=lambda step: (averages[step], step), reverse=True)
