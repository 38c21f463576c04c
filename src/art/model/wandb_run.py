"""A model's run in Weights & Biases, where one is wanted and can be had."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from wandb import Run

logger = logging.getLogger(__name__)

STEP_METRIC = "training_step"
_PLOTTED_BY_STEP = (
    "reward", "loss", "throughput", "costs", "time", "data", "train", "val", "test", "discarded",
)  # fmt: skip


class WandbRun:
    """Opens the run at its first use, and keeps the configuration until then.

    A run is wanted when `WANDB_API_KEY` is set and `report_metrics` is None or names "wandb".
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config: dict[str, Any] = copy.deepcopy(dict(config or {}))
        self._run: Run | None = None
        self._defined: set[str] = set()
        self._is_missing_reported = False
        self._lock = threading.RLock()

    @property
    def config(self) -> dict[str, Any]:
        """What was set with `update_config`."""
        return self._config

    def update_config(self, updates: Mapping[str, Any]) -> None:
        """Merge into the run's configuration, now or when it is opened.

        Raises:
            ConfigurationError: A key has another value already.
        """
        with self._lock:
            self._config = _merge_config(self._config, updates)
            if self._run is not None:
                self._run.config.update(self._config)

    def get(
        self, *, project: str, name: str, report_metrics: list[str] | None, inference_base_url: str | None
    ) -> Run | None:
        """Give the run, opening it if needed; None where none is wanted, or wandb is not installed."""
        if not os.environ.get("WANDB_API_KEY") or (report_metrics is not None and "wandb" not in report_metrics):
            return None
        with self._lock:
            if self._run is None or _is_finished(self._run):
                self._run = self._open(project, name, inference_base_url)
            return self._run

    def log(self, run: Run, row: Mapping[str, float]) -> None:
        """Send a row; it carries its own step, so that evaluations of older steps may arrive late."""
        with self._lock:
            self._define(run, (key for key in row if key.startswith("costs/")))
        run.log(dict(row))

    def _open(self, project: str, name: str, inference_base_url: str | None) -> Run | None:
        try:
            import wandb
        except ImportError:
            if not self._is_missing_reported:
                logger.warning("WANDB_API_KEY is set, but wandb is not installed: metrics go to history.jsonl only")
                self._is_missing_reported = True
            return None
        settings = None
        if inference_base_url is not None:
            settings = wandb.Settings(x_stats_open_metrics_endpoints={"vllm": _metrics_url(inference_base_url)})
        with _open_runs.lock:
            run = _open_runs.find(project, name, wandb.run)
            if run is not None:
                run.config.update(self._config, allow_val_change=True)  # another object may have set others
            else:
                run = wandb.init(
                    project=project,
                    name=name,
                    id=name,
                    resume="allow",
                    config=self._config or None,
                    settings=settings,
                    # While another run is open, such as that of a second model, wandb would give that one.
                    reinit="create_new" if _open_runs.has_others(wandb.run) else None,
                )
            _open_runs.add(project, name, run)
        self._defined = set()
        run.define_metric(STEP_METRIC)
        self._define(run, (f"{section}/*" for section in _PLOTTED_BY_STEP))
        logger.info("W&B run opened: project=%s name=%s", project, name)
        return run

    def _define(self, run: Run, keys: Iterable[str]) -> None:
        for key in keys:
            if key not in self._defined:
                run.define_metric(key, step_metric=STEP_METRIC)
                self._defined.add(key)


class _OpenRuns:
    """The runs that this process has open: wandb itself only tells the one that was opened last."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._runs: dict[tuple[str, str], Run] = {}

    def add(self, project: str, name: str, run: Run) -> None:
        self._runs[project, name] = run

    def find(self, project: str, name: str, global_run: Run | None) -> Run | None:
        """Give the open run of a model, opened by another object of it or by the script itself."""
        run = self._runs.get((project, name))
        if run is not None and not _is_finished(run):
            return run
        is_meant = global_run is not None and (global_run.project, global_run.id) == (project, name)
        return global_run if is_meant else None

    def has_others(self, global_run: Run | None) -> bool:
        """Say whether any run is open."""
        return global_run is not None or not all(_is_finished(run) for run in self._runs.values())


_open_runs = _OpenRuns()


def _is_finished(run: Run) -> bool:
    return bool(getattr(run, "_is_finished", False))


def _metrics_url(inference_base_url: str) -> str:
    """Give the address where the inference server that has this base URL shows its own metrics."""
    parts = urlsplit(inference_base_url)
    return urlunsplit((parts.scheme, parts.netloc, "/metrics", "", ""))


def _merge_config(existing: Mapping[str, Any], updates: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    merged = dict(existing)
    for key, value in updates.items():
        dotted = f"{path}.{key}" if path else str(key)
        if key not in merged:
            merged[key] = copy.deepcopy(value)
        elif isinstance(merged[key], Mapping) and isinstance(value, Mapping):
            merged[key] = _merge_config(merged[key], value, dotted)
        elif merged[key] != value:
            raise ConfigurationError(f"W&B config {dotted!r} is {merged[key]!r} and cannot become {value!r}")
    return merged
