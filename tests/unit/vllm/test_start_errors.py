"""The reason of an engine that did not start is found where its core wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from art.vllm.engine import EnginePlan
from art.vllm.start_errors import size_of, start_error

PLAN = EnginePlan(engine_args={"model": "tiny"}, server_args={}, has_cuda=False)
HIDDEN = RuntimeError("Engine core initialization failed. See root cause above.")
CORE = (
    "(EngineCore pid=7) ERROR 01-01 12:00:00 [core.py:1] Traceback (most recent call last):\n"
    "(EngineCore pid=7) ERROR 01-01 12:00:00 [core.py:1] ValueError: no room for the cache\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "vllm.log"
    path.write_text("INFO loading the trainer\nKeyError: 'of something before'\n")
    return path


def test_reason_of_the_core_comes_first(log: Path) -> None:
    began = size_of(log)
    with log.open("a") as file:
        file.write(CORE)
    error = start_error(HIDDEN, PLAN, log, began)
    assert (
        f"engine for tiny did not start: ValueError: no room for the cache (reported as RuntimeError: {HIDDEN})"
        in str(error)
    )
    assert f"log: {log}" in str(error)
    assert error.log_path == str(log)
    assert "no room for the cache" in error.log_tail


def test_what_was_written_before_is_no_reason(log: Path) -> None:
    error = start_error(HIDDEN, PLAN, log, size_of(log))
    assert f"did not start: RuntimeError: {HIDDEN}; log: {log}" in str(error)
    assert error.log_tail == ""


def test_reason_that_came_by_itself_is_told_once(log: Path, tmp_path: Path) -> None:
    began = size_of(log)
    with log.open("a") as file:
        file.write("ValueError: too long\n")
    outer = RuntimeError("outer")
    outer.__cause__ = ValueError("too long")
    assert "did not start: ValueError: too long; log:" in str(start_error(outer, PLAN, log, began))
    nowhere = tmp_path / "nowhere.log"
    assert "did not start: ValueError: too long; log:" in str(start_error(outer, PLAN, nowhere, size_of(nowhere)))
