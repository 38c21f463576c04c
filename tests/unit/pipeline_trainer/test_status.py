"""What is shown of a pipeline."""

from __future__ import annotations

import io
from typing import Any

import pytest

from art.pipeline_trainer import StatusReporter
from tests.support.scripted_pipeline import make_group


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_reporter(**settings: Any) -> StatusReporter:
    return StatusReporter(get_scenario_offset=lambda: 12, **{"num_workers": 4, **settings})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have the time be the list's last entry."""
    times = [100.0]
    monkeypatch.setattr("art.pipeline_trainer.status.time.monotonic", lambda: times[-1])
    return times


def do_some_work(reporter: StatusReporter) -> None:
    for errored in (False, False, True):
        reporter.note_rollout_started()
        reporter.note_rollout_finished(errored=errored)
    reporter.note_rollout_started()
    for _ in range(6):
        reporter.note_group_enqueued(make_group())
    for _ in range(3):
        reporter.note_group_dequeued(make_group())
    reporter.note_stale(1)
    reporter.note_zero_variance_discarded(2)
    reporter.note_training_batch([make_group(0.0, 1.0), make_group(0.0, 0.0)], step=3, step_seconds=2.0)
    reporter.note_training_batch([make_group(1.0, 1.0)], step=4, step_seconds=4.0)
    reporter.note_idle_times(trainer_idle_s=1.0, wall_s=4.0, steps_off_policy=1.5)
    reporter.note_training_start(2)
    reporter.note_val_started(2)
    reporter.note_val_finished(2, 0.75)
    reporter.note_val_started(4)


def test_a_line_for_log_files(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    reporter = make_reporter(log_interval_seconds=10.0, status_ewa_alpha=0.5, total_scenarios=20)
    reporter.start(initial_step=2)
    do_some_work(reporter)
    clock.append(109.0)
    reporter.log_if_due()
    clock.append(112.0)
    reporter.log_if_due()
    reporter.log_if_due()
    reporter.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "[status] scenarios: 0 trained, 8 left, 0 queued, 0 training, 0 discarded (0 zero variance, 0 stale, "
        "0 errored), rollouts 0/4 running -/s | train: step 2, reward -, std -, - s/step, - steps off policy, "
        "trainer idle - | val: reward -",
        # Weighted half and half: reward (0.25 + 1) / 2, deviation (0.25 + 0) / 2, seconds (2 + 4) / 2.
        "[status] scenarios: 3 trained, 8 left, 3 queued, 2 training, 4 discarded (2 zero variance, 1 stale, "
        "1 errored), rollouts 1/4 running 0.25/s | train: step 4, reward 0.625, std 0.125, 3.0 s/step, 1.5 steps off "
        "policy, trainer idle 25% | val: reward 0.750 at step 2, evaluating step 4",
    ]


def test_a_line_can_be_had_at_once(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    reporter = make_reporter()
    reporter.start()
    reporter.set_step(5)
    reporter.flush()
    reporter.log_if_due(force=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "train: step 5," in lines[-1]
    assert " left," not in lines[-1]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_output_that_fails_is_given_up(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_terminal: bool
) -> None:
    output = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    reporter = make_reporter()
    reporter.start()
    output.close()
    reporter.flush()
    clock.append(200.0)
    reporter.log_if_due()
    do_some_work(reporter)
    reporter.close()
    assert caplog.text.count("the status is no longer shown") == 1


def test_rates_as_metrics_are_those_since_the_last_call(clock: list[float]) -> None:
    reporter = make_reporter()
    reporter.start()
    do_some_work(reporter)
    clock.append(106.0)
    expected = {"pipeline/rollouts_running": 1.0, "pipeline/rollouts_per_s": 0.5, "pipeline/failed_rollouts": 1.0}
    assert reporter.metrics() == expected
    clock.append(107.0)
    assert reporter.metrics()["pipeline/rollouts_per_s"] == 0.0


def test_a_terminal_has_a_short_line_that_fits(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    reporter = make_reporter()
    reporter.start(initial_step=2)
    do_some_work(reporter)  # too soon after the start for a second drawing
    drawn = terminal.getvalue()
    assert "[status] scenarios: 0 trained" in drawn
    assert "step 4" not in drawn
    clock.append(106.0)
    reporter.log_if_due()
    assert reporter.short_line() == (
        # Averages: reward 0.25 + 0.2 * (1 - 0.25). Three rollouts ended in six seconds.
        "step 4 training 2, reward 0.400 val 0.750 | queue 3, rollouts 1/4 0.50/s | 1.5 off policy, trainer idle 25% | "
        "trained 3, discarded 4"
    )
    new = terminal.getvalue()[len(drawn) :]
    assert "step 4 training 2, reward 0.400 val 0.…" in new
    assert "…" in new
    assert max(len(part) for part in new.replace("\r", "\n").split("\n")) <= 40
    reporter.close()
    assert len(terminal.getvalue().rpartition("\r")[2].strip()) == 0  # nothing is left standing
