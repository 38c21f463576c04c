"""Reading the history."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from art.model.history import HistoryTail, best_step, read_metric


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


def test_a_tail_gives_each_line_once_and_none_that_is_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.jsonl"
    tail = HistoryTail(path)
    assert tail.read() == {}
    path.write_text('{"a": 1, "step": 1}\n{"a": 2, "step": 1}\n{"a": 3, "st')
    assert tail.read() == {1: {"a": [1.0, 2.0], "step": [1.0, 1.0]}}
    assert tail.read() == {}
    with path.open("a") as file:
        file.write('ep": 2}\nbroken\n')
    assert tail.read() == {2: {"a": [3.0], "step": [2.0]}}
    assert "line=4" in caplog.text
    path.write_text('{"a": 4, "step": 3}\n')
    assert tail.read() == {3: {"a": [4.0], "step": [3.0]}}
