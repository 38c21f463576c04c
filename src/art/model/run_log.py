"""The work behind `Model.log`: from trajectories and metrics to a history row, a trajectory file and a W&B row."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError
from art.metric_keys import is_builder_managed_metric, is_cumulative_metric_key
from art.metrics import EVAL_SCOPE, MetricsBuilder
from art.metrics_taxonomy import build_data_metrics_from_summary, summarize_trajectory_groups
from art.model.aggregate import average_groups
from art.model.state import METRICS_BUILDER_STATE_KEY, StateFile
from art.model.training_input import number_of, refuse_unawaited
from art.trajectories import Trajectory, TrajectoryGroup
from art.utils.output_dirs import get_trajectories_split_dir
from art.utils.trajectory_logging import log_trajectory_groups

logger = logging.getLogger(__name__)

METRIC_SECTIONS = frozenset({"reward", "loss", "offpolicy", "pipeline", "throughput", "costs", "time", "data"})
METRIC_SPLITS = frozenset({"train", "val", "test"})
TRAIN_SPLIT = "train"
HISTORY_FILE = "history.jsonl"
WALL_TIME_KEY = "time/step_wall_s"
GPU_COST_KEY = "costs/gpu"
SECONDS_PER_HOUR = 3600.0

RowSink = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class LogEntry:
    """What one call of `Model.log` reports.

    Attributes:
        groups: The trajectories, or None where only metrics are reported.
        metrics: The caller's own metrics.
        split: Which part of the data they belong to.
        step: The model's step.
        has_automatic_metrics: Whether the backend wants the time between training steps logged.
        gpu_cost_per_hour_usd: What its GPUs cost, or None.
    """

    groups: list[TrajectoryGroup] | None
    metrics: Mapping[str, float]
    split: str
    step: int
    has_automatic_metrics: bool = False
    gpu_cost_per_hour_usd: float | None = None


class RunLog:
    """Writes what one model object reports. Blocking; may be used from several threads."""

    def __init__(self, *, started_monotonic_s: float) -> None:
        self._builder = MetricsBuilder(TRAIN_SPLIT)
        self._totals_of: Path | None = None
        self._stored_sums: dict[str, float] = {}  # as this object knows them
        self._started_monotonic_s = started_monotonic_s
        self._last_train_monotonic_s = started_monotonic_s
        self._last_train_step: int | None = None
        self._loading = threading.Lock()
        self._writing = threading.RLock()

    def builder(self, model_dir: Path) -> MetricsBuilder:
        """Give the builder, with the totals that are stored in this model's folder."""
        with self._loading:
            if self._totals_of != model_dir:
                state = StateFile(model_dir).read() or {}
                totals = state.get(METRICS_BUILDER_STATE_KEY)
                if totals is not None:
                    self._builder.load_totals(totals)
                self._stored_sums = _sums_of(totals)
                self._totals_of = model_dir
            return self._builder

    def write(self, entry: LogEntry, model_dir: Path, *, sink: RowSink | None = None) -> None:
        """Write everything that an entry leads to.

        Nothing is written, and nothing is added to the sums, if a metric's name or value is refused.

        Args:
            entry: What was reported.
            model_dir: The model's folder.
            sink: Receives the row's finite numbers, for W&B; None where there is no run.

        Raises:
            ConfigurationError: A metric's name is reserved or contradicts another one.
            TypeError: A metric is not a number.
        """
        with self._writing:
            builder = self.builder(model_dir).for_cost_context(
                TRAIN_SPLIT, buffer_scope=EVAL_SCOPE if entry.split in METRIC_SPLITS - {TRAIN_SPLIT} else entry.split
            )
            averages, sums = split_metrics(entry.groups or [], entry.metrics)
            self._add_missing(sums, given=set(averages) | set(sums), entry=entry)
            builder.check_metrics(sums)
            if entry.groups is not None:
                split_dir = Path(get_trajectories_split_dir(str(model_dir), entry.split))
                log_trajectory_groups(entry.groups, split_dir, entry.step)
            builder.add_metrics(sums)
            if entry.groups is not None and entry.split == TRAIN_SPLIT:
                builder.add_data(scenario_ids=summarize_trajectory_groups(entry.groups).scenario_ids)
            self.write_row(averages | self._flush(builder, model_dir), entry.split, entry.step, model_dir, sink=sink)
            if entry.split == TRAIN_SPLIT and entry.step != self._last_train_step:
                self._last_train_step, self._last_train_monotonic_s = entry.step, time.monotonic()

    def write_row(
        self, metrics: Mapping[str, float], split: str, step: int, model_dir: Path, *, sink: RowSink | None = None
    ) -> None:
        """Append one row to the history; metrics that are NaN are left out, infinite ones are null."""
        numbers = {key: _number(key, value) for key, value in metrics.items()}
        named = {qualify_key(key, split): value for key, value in numbers.items() if not math.isnan(value)}
        if not named:
            return
        step_facts = {"training_step": step, "time/wall_clock_sec": time.monotonic() - self._started_monotonic_s}
        row: dict[str, Any] = {key: value if math.isfinite(value) else None for key, value in named.items()}
        row |= {**step_facts, "step": step, "recorded_at": datetime.now().isoformat()}
        with self._writing:
            _append_line(model_dir / HISTORY_FILE, json.dumps(row, allow_nan=False))
        if sink is not None:
            sink({key: value for key, value in named.items() if math.isfinite(value)} | step_facts)

    def _flush(self, builder: MetricsBuilder, model_dir: Path) -> dict[str, float]:
        row: dict[str, float] = {}

        def add_up(stored: Any) -> dict[str, Any]:
            # Other processes may log for the same model: what they have added since counts, too.
            others = {key: value - self._stored_sums.get(key, 0.0) for key, value in _sums_of(stored).items()}
            builder.add_totals(others, (stored or {}).get("unique_scenario_ids") or ())
            row.update(builder.flush_now())
            totals = builder.state_dict()
            self._stored_sums = _sums_of(totals)
            return totals

        StateFile(model_dir).change(METRICS_BUILDER_STATE_KEY, add_up)
        return row

    def _add_missing(self, sums: dict[str, float], *, given: set[str], entry: LogEntry) -> None:
        found: dict[str, float] = {}
        if entry.groups is not None and entry.split in METRIC_SPLITS:
            found |= build_data_metrics_from_summary(
                summarize_trajectory_groups(entry.groups), include_trainable_groups=entry.split == TRAIN_SPLIT
            )
        if entry.has_automatic_metrics and entry.split == TRAIN_SPLIT and entry.step != self._last_train_step:
            found[WALL_TIME_KEY] = time.monotonic() - self._last_train_monotonic_s
            if entry.gpu_cost_per_hour_usd is not None:
                found[GPU_COST_KEY] = found[WALL_TIME_KEY] * entry.gpu_cost_per_hour_usd / SECONDS_PER_HOUR
        sums |= {key: value for key, value in found.items() if key not in given}


def normalize_trajectory_groups(
    trajectories: Iterable[Trajectory | BaseException] | Iterable[TrajectoryGroup],
) -> list[TrajectoryGroup]:
    """Give groups as they are, and bare trajectories and exceptions as one group.

    Raises:
        TypeError: Both are mixed, or something else is among them.
    """
    refuse_unawaited(trajectories)
    if isinstance(trajectories, TrajectoryGroup):
        return [trajectories]
    if isinstance(trajectories, Trajectory | Mapping):
        hint = "give a list of trajectories" if isinstance(trajectories, Trajectory) else "metrics go to `metrics=`"
        raise TypeError(f"expected TrajectoryGroups or Trajectories, got a {type(trajectories).__name__}: {hint}")
    items: list[Any] = list(trajectories)
    if all(isinstance(item, TrajectoryGroup) for item in items):
        return items
    if all(isinstance(item, Trajectory | BaseException) for item in items):
        return [TrajectoryGroup(items)]
    kinds = sorted({type(item).__name__ for item in items})
    raise TypeError(f"expected only TrajectoryGroups, or only Trajectories and exceptions, got {', '.join(kinds)}")


def split_metrics(
    groups: list[TrajectoryGroup], metrics: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Sort all metrics into those that are averaged, ready averages, and those that are summed over the step.

    The caller's metrics replace averages of the same name, and are added to sums.

    Raises:
        ConfigurationError: A name is reserved.
        TypeError: A value is not a number.
    """
    sums: dict[str, float] = {}

    def take_sums(values: Mapping[str, Any]) -> dict[str, float]:
        averaged = {}
        for key, value in values.items():
            number = _number(key, value)
            _refuse_reserved(key)
            if is_builder_managed_metric(key):
                sums[key] = sums.get(key, 0.0) + number
            else:
                averaged[key] = number
        return averaged

    averages = average_groups(groups, take_sums)
    return averages | take_sums(metrics), sums


def qualify_key(key: str, split: str) -> str:
    """Give a metric's name in the history: `reward` of split `val` is `val/reward`; sections keep theirs."""
    section, slash, _ = key.partition("/")
    if split in METRIC_SPLITS and slash and section in METRIC_SECTIONS | METRIC_SPLITS:
        return key
    return f"{split}/{key}"


def _sums_of(totals: Mapping[str, Any] | None) -> dict[str, float]:
    return {key: float(value) for key, value in ((totals or {}).get("cum_state") or {}).items()}


def _refuse_reserved(key: str) -> None:
    if key.startswith("costs_"):
        raise ConfigurationError(f"metric {key!r}: costs are written with a slash, as in 'costs/{key[6:]}'")
    if key.startswith("costs/") and is_cumulative_metric_key(key):
        raise ConfigurationError(f"metric {key!r} is a total, which is computed from the costs of each step")


def _number(key: str, value: Any) -> float:
    if not isinstance(key, str):
        raise TypeError(f"the name of a metric must be text, got {key!r}")
    return number_of(f"metric {key!r}", value)


def _append_line(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END) > 0:
            # A run that was killed may have left half a line, which must not spoil this one.
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = f"\n{line}"
        file.write(f"{line}\n".encode())
