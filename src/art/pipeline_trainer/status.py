"""Show how a pipeline is doing: a line now and then for log files, and a short live line on a terminal."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Callable
from statistics import fmean, pstdev
from typing import Any

from tqdm import tqdm

from art.errors import ConfigurationError
from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

LIVE_INTERVAL_S = 0.25
MIN_RATE_INTERVAL_S = 5.0  # a shorter one says little about a rate
UNKNOWN = "-"


class _LiveLine(tqdm):  # type: ignore[type-arg]  # not subscriptable at run time
    """A line of text at the bottom of the terminal, without the background thread that tqdm starts for some bars."""

    monitor_interval = 0


class _Average:
    """An exponentially weighted average."""

    def __init__(self, alpha: float) -> None:
        self.value: float | None = None
        self._alpha = alpha

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self._alpha * value + (1 - self._alpha) * self.value

    def show(self, spec: str) -> str:
        return UNKNOWN if self.value is None else format(self.value, spec)


class StatusReporter:
    """Counts what happens in a pipeline and shows it on standard output.

    Every `log_interval_seconds` a line beginning `[status]` is printed: scenarios and rollouts, training, evaluation.
    On a terminal a short line at the bottom shows the same all the time.

    Args:
        get_scenario_offset: Gives how many scenarios were handed out.
        log_interval_seconds: Time between two lines.
        status_ewa_alpha: Weight of the newest value in averages, in (0, 1].
        total_scenarios: How many scenarios there are, where that is known.
        num_workers: How many rollouts can run at once.

    Raises:
        ConfigurationError: A number is out of range.
    """

    def __init__(
        self,
        *,
        get_scenario_offset: Callable[[], int],
        log_interval_seconds: float = 60.0,
        status_ewa_alpha: float = 0.2,
        total_scenarios: int | None = None,
        num_workers: int = 1,
    ) -> None:
        if not log_interval_seconds > 0:
            raise ConfigurationError(f"log_interval_seconds={log_interval_seconds} must be greater than 0")
        if not 0 < status_ewa_alpha <= 1:
            raise ConfigurationError(f"status_ewa_alpha={status_ewa_alpha} must be above 0 and at most 1")
        if total_scenarios is not None and total_scenarios < 0:
            raise ConfigurationError(f"total_scenarios={total_scenarios} must not be negative")
        self._get_scenario_offset = get_scenario_offset
        self._interval_s = log_interval_seconds
        self._total_scenarios = total_scenarios
        self._num_workers = num_workers
        self._step: int | None = None
        self._trained = self._queued = self._training = self._running = 0
        self._stale = self._zero_variance = self._errored = self._finished = 0
        self._reward, self._step_s, self._std, self._off_policy, self._trainer_idle = (
            _Average(status_ewa_alpha) for _ in range(5)
        )
        self._val_reward: float | None = None
        self._val_reward_step: int | None = None
        self._val_active: int | None = None
        self._began = self._lined_at = self._drawn_at = time.monotonic()
        self._finished_at_line = self._finished_at_metrics = 0
        self._metrics_at = self._began
        self._rate: float | None = None
        self._live: _LiveLine | None = None
        self._is_mute = False

    # Life -------------------------------------------------------------------------------------------------------

    def start(self, *, initial_step: int | None = None) -> None:
        """Begin: the first line is printed."""
        self._step = initial_step
        self._began = self._lined_at = self._metrics_at = time.monotonic()
        if sys.stdout.isatty():
            self._live = _LiveLine(bar_format="{desc}", file=sys.stdout, leave=False, dynamic_ncols=True)
        self.log_if_due(force=True)

    def flush(self) -> None:
        """Print a line now."""
        self.log_if_due(force=True)

    def close(self) -> None:
        """Take the live line away."""
        if self._live is not None:
            with contextlib.suppress(OSError, ValueError):
                self._live.close()
            self._live = None

    def log_if_due(self, *, force: bool = False) -> None:
        """Print a line if it is time for one, and refresh the live line."""
        now = time.monotonic()
        if force or now - self._lined_at >= self._interval_s:
            if now - self._lined_at >= min(1.0, self._interval_s):
                self._rate = (self._finished - self._finished_at_line) / (now - self._lined_at)
            self._lined_at, self._finished_at_line = now, self._finished
            self._print(self.line())
        self._refresh(now)

    # What happens -----------------------------------------------------------------------------------------------

    def set_step(self, step: int) -> None:
        """Note the step that the model is at."""
        self._step = step
        self._refresh(time.monotonic())

    def note_rollout_started(self) -> None:
        """Note that the rollout of a group began."""
        self._running += 1
        self._refresh(time.monotonic())

    def note_rollout_finished(self, *, errored: bool) -> None:
        """Note that the rollout of a group ended."""
        self._running -= 1
        self._finished += 1
        self._errored += errored
        self._refresh(time.monotonic())

    def note_rollout_stopped(self) -> None:
        """Note that the rollout of a group was cut off."""
        self._running -= 1

    def note_group_enqueued(self, _group: TrajectoryGroup) -> None:
        """Note that a group waits for training."""
        self._queued += 1

    def note_group_dequeued(self, _group: TrajectoryGroup) -> None:
        """Note that training took a group from the queue."""
        self._queued -= 1

    def note_stale(self, count: int) -> None:
        """Note that groups were too old."""
        self._stale += count

    def note_zero_variance_discarded(self, count: int) -> None:
        """Note that groups had no variance."""
        self._zero_variance += count

    def note_training_start(self, group_count: int) -> None:
        """Note that a batch is being trained."""
        self._training = group_count
        self._refresh(time.monotonic())

    def note_training_end(self) -> None:
        """Note that it no longer is."""
        self._training = 0

    def note_training_batch(self, batch: list[TrajectoryGroup], *, step: int, step_seconds: float) -> None:
        """Note what was trained."""
        self._step = step
        self._trained += len(batch)
        self._step_s.add(step_seconds)
        rewards = [[trajectory.reward for trajectory in group.trajectories] for group in batch if group.trajectories]
        if rewards:
            self._reward.add(fmean([reward for group in rewards for reward in group]))
            self._std.add(fmean([pstdev(group) for group in rewards]))
        self._refresh(time.monotonic())

    def note_idle_times(self, *, trainer_idle_s: float, wall_s: float, steps_off_policy: float) -> None:
        """Note which part of a step the trainer waited for groups, and how old these were."""
        self._trainer_idle.add(min(1.0, trainer_idle_s / wall_s) if wall_s > 0 else 0.0)
        self._off_policy.add(steps_off_policy)

    def note_val_started(self, step: int) -> None:
        """Note that a step is being evaluated."""
        self._val_active = step
        self._refresh(time.monotonic())

    def note_val_finished(self, step: int, reward: float | None) -> None:
        """Note what the evaluation gave; None: no reward."""
        self._val_active = None
        if reward is not None:
            self._val_reward, self._val_reward_step = reward, step
        self._refresh(time.monotonic())

    # What is shown ----------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Give what the lines show as metrics of a step; rates are those since the last call."""
        now = time.monotonic()
        rate = (self._finished - self._finished_at_metrics) / max(now - self._metrics_at, 1e-9)
        self._finished_at_metrics, self._metrics_at = self._finished, now
        return {
            "pipeline/rollouts_running": float(self._running),
            "pipeline/rollouts_per_s": rate,
            "pipeline/failed_rollouts": float(self._errored),
        }

    def line(self) -> str:
        """Give the line for log files."""
        offset = self._get_scenario_offset()
        left = "" if self._total_scenarios is None else f" {max(0, self._total_scenarios - offset)} left,"
        discarded = self._stale + self._zero_variance + self._errored
        val = UNKNOWN if self._val_reward is None else f"{self._val_reward:.3f} at step {self._val_reward_step}"
        active = "" if self._val_active is None else f", evaluating step {self._val_active}"
        return (
            f"[status] scenarios: {self._trained} trained,{left} {self._queued} queued, {self._training} training, "
            f"{discarded} discarded ({self._zero_variance} zero variance, {self._stale} stale, "
            f"{self._errored} errored), rollouts {self._running}/{self._num_workers} running {_show_rate(self._rate)}/s"
            f" | train: step {UNKNOWN if self._step is None else self._step}, reward {self._reward.show('.3f')}, "
            f"std {self._std.show('.3f')}, {self._step_s.show('.1f')} s/step, {self._off_policy.show('.1f')} steps off "
            f"policy, trainer idle {self._trainer_idle.show('.0%')}"
            f" | val: reward {val}{active}"
        )

    def short_line(self) -> str:
        """Give the line for a terminal's bottom."""
        busy = f"training {self._training}" if self._training else "collecting"
        val = "" if self._val_reward is None else f" val {self._val_reward:.3f}"
        elapsed_s = time.monotonic() - self._lined_at
        rate = self._rate
        if rate is None or elapsed_s >= MIN_RATE_INTERVAL_S:
            rate = (self._finished - self._finished_at_line) / elapsed_s if elapsed_s > 0 else None
        return (
            f"step {UNKNOWN if self._step is None else self._step} {busy}, reward {self._reward.show('.3f')}{val} | "
            f"queue {self._queued}, rollouts {self._running}/{self._num_workers} {_show_rate(rate)}/s | "
            f"{self._off_policy.show('.1f')} off policy, trainer idle {self._trainer_idle.show('.0%')} | "
            f"trained {self._trained}, discarded {self._stale + self._zero_variance + self._errored}"
        )

    def _print(self, line: str) -> None:
        if self._is_mute:
            return
        try:
            if self._live is None:
                print(line, flush=True)
            else:
                tqdm.write(line, file=sys.stdout)
        except (OSError, ValueError) as err:  # whoever read the output is gone, which is no reason to end a run
            self._mute(err)

    def _refresh(self, now: float) -> None:
        if self._live is None or self._is_mute or now - self._drawn_at < LIVE_INTERVAL_S:
            return
        self._drawn_at = now
        width: int = shutil.get_terminal_size().columns
        text = self.short_line()
        live: Any = self._live
        try:
            live.set_description_str(text if len(text) < width else f"{text[: max(0, width - 2)]}…")
        except (OSError, ValueError) as err:
            self._mute(err)

    def _mute(self, error: Exception) -> None:
        self._is_mute = True
        logger.warning("the status is no longer shown: standard output failed: %r", error)


def _show_rate(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{rate:.2f}"
