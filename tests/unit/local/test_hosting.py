"""What is known about a service from its events."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import art
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


def registered(hosted: HostedService, server_config: Any = None, *, base_model: str = "b", **config: Any) -> None:
    model: Any = art.TrainableModel(name="m", project="p", base_model=base_model, _internal_config=config)  # type: ignore[arg-type]
    hosted.compare_settings(model, server_config)


def test_registering_again_with_the_same_settings_is_nothing_to_tell(
    hosted: HostedService, caplog: pytest.LogCaptureFixture
) -> None:
    registered(hosted, {"server_args": {"port": 1}}, peft_args={"r": 8})
    registered(hosted, {"server_args": {"port": 1}}, peft_args={"r": 8})
    registered(hosted)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("server_config", "settings", "named"),
    [
        (None, {"peft_args": {"r": 4}}, "_internal_config of"),
        ({"server_args": {"port": 2}}, {"peft_args": {"r": 8}}, "_openai_client_config of"),
        (None, {"peft_args": {"r": 8}, "base_model": "c"}, "base_model of"),
    ],
)
def test_registering_again_with_other_settings_is_told(
    hosted: HostedService,
    caplog: pytest.LogCaptureFixture,
    server_config: Any,
    settings: dict[str, Any],
    named: str,
) -> None:
    first: dict[str, Any] = {"r": 8}
    registered(hosted, {"server_args": {"port": 1}}, peft_args=first)
    first["r"] = 4  # scripts reuse their dictionaries
    registered(hosted, server_config, **settings)
    assert f"m is served already, with other settings: {named} this registration has no effect" in caplog.text
