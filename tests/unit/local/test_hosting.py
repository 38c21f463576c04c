"""What is known about a service from its events."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art.inference.gate import ServingGate
from art.local.hosting import HostedService


class Service:
    model_name = "m"
    on_event: Any = None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[HostedService]:
    hosted = HostedService(Service(), in_process=True, log_path=tmp_path / "log", gate=ServingGate())  # type: ignore[arg-type]
    yield hosted
    hosted.close()


def test_the_bar_goes_when_a_step_is_served_whatever_rows_it_left_out(
    hosted: HostedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    hosted._handle_event({"kind": "train_progress", "step": 1, "done": 1, "total": 3})
    assert hosted.rows._bar is not None
    hosted._handle_event({"kind": "served", "step": 1})
    assert (hosted.rows._bar, hosted.served_step) == (None, 1)
