"""Reading the history."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from art.model.history import best_step, read_metric


def test_values_by_step_and_broken_lines_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(
        '{"val/reward": 0.5, "step": 1, "recorded_at": "text"}\n'
        '{"val/reward": null, "step": 2}\n'
        '{"val/rew\n'
        "\n"
        '{"val/reward": 1, "step": 1}\n'
        '{"other": 1, "step": 3}\n'
    )
    with caplog.at_level(logging.WARNING):
        assert read_metric(path, "val/reward") == {1: [0.5, 1.0]}
    assert "line=3" in caplog.text
    assert best_step(path, "val/reward") == 1
    assert best_step(path, "none") is None
    assert best_step(tmp_path / "absent", "val/reward") is None
