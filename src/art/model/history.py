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
    with history_path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            _add_row(numbers, line, history_path, number)
    return numbers


class HistoryTail:
    """Reads a history time and again, each time only what came since; a line that is being written is left for later.

    Args:
        path: The history; need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._line = 0

    def read(self) -> dict[int, dict[str, list[float]]]:
        """Give all values of all metrics in the new lines, by step and metric; see `read_metric`. Blocks."""
        numbers: dict[int, dict[str, list[float]]] = {}
        if not self._path.exists():
            return numbers
        with self._path.open("rb") as file:
            if self._path.stat().st_size < self._offset:  # another file has taken its place
                self._offset = self._line = 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                self._line += 1
                _add_row(numbers, line, self._path, self._line)
        return numbers


def _add_row(numbers: dict[int, dict[str, list[float]]], line: bytes, path: Path, number: int) -> None:
    try:
        row = json.loads(line)
    except ValueError as err:
        if line.strip():
            logger.warning("history line passed over: path=%s line=%d cause=%s", path, number, err)
        return
    step = row.get("step") if isinstance(row, dict) else None
    if not isinstance(step, int):
        return
    for metric, value in row.items():
        if isinstance(value, int | float) and not math.isnan(value):
            numbers.setdefault(step, {}).setdefault(metric, []).append(float(value))


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
