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
            if self._run is None or getattr(self._run, "_is_finished", False):
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
        run = wandb.init(
            project=project, name=name, id=name, resume="allow", config=self._config or None, settings=settings
        )
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
