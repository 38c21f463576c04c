"""Where the output of a model's service goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import art
from art import dev
from art.local import LocalBackend
from art.local import backend as backend_module


@pytest.fixture
def log_paths(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Record what each service is told, and start none."""
    told: list[Path] = []

    class Service:
        def __init__(self, service: Any, *, log_path: Path, **_: Any) -> None:
            told.append(log_path)

        def close(self) -> None:
            """There is nothing to end."""

    monkeypatch.setattr(backend_module, "HostedService", Service)
    return told


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, "p/models/m/logs/vllm.log"),
        ({"server_args": {"port": 1}}, "p/models/m/logs/vllm.log"),
        ({"log_file": "{tmp}/elsewhere/mine.log"}, "elsewhere/mine.log"),
    ],
)
def test_log_file_of_the_server_configuration_is_the_log_of_shared_mode(
    config: dict[str, Any] | None, expected: str, log_paths: list[Path], tmp_path: Path
) -> None:
    given = {key: value.format(tmp=tmp_path) if key == "log_file" else value for key, value in (config or {}).items()}
    model = art.TrainableModel(name="m", project="p", base_model="org/base")
    with LocalBackend(path=str(tmp_path)) as backend:
        backend._host(model, dev.OpenAIServerConfig(**given) if config is not None else None)  # type: ignore[typeddict-item]
    assert log_paths == [tmp_path / expected]
