"""The W&B run, with a stand-in for the package."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from art.model import Model


class FakeRun:
    def __init__(self, **given: Any) -> None:
        self.given = given
        self.config = dict(given["config"] or {})
        self.rows: list[dict[str, float]] = []
        self.defined: dict[str, str | None] = {}
        self._is_finished = False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.defined[name] = step_metric

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)


class FakeWandb(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[FakeRun] = []

    def init(self, **given: Any) -> FakeRun:
        self.runs.append(FakeRun(**given))
        return self.runs[-1]

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setenv("WANDB_API_KEY", "key")
    return fake


def prompted(tmp_path: Path, **fields: Any) -> Model[Any, Any]:
    keywords: dict[str, Any] = {"name": "agent", "project": "mail", "base_path": str(tmp_path), **fields}
    return Model(**keywords)


def test_rows_go_to_a_run_named_after_the_model(tmp_path: Path, wandb: FakeWandb) -> None:
    model = prompted(tmp_path, inference_base_url="http://127.0.0.1:8123/v1")
    model.update_wandb_config({"lr": 1})
    asyncio.run(model.log(metrics={"x": 1.0, "costs/judge": 2.0, "bad": float("inf")}, split="train", step=3))
    asyncio.run(model.log(metrics={"x": 2.0}, split="train", step=4))
    (run,) = wandb.runs
    assert run.given == {
        "project": "mail",
        "name": "agent",
        "id": "agent",
        "resume": "allow",
        "config": {"lr": 1},
        "settings": {"x_stats_open_metrics_endpoints": {"vllm": "http://127.0.0.1:8123/metrics"}},
    }
    first = run.rows[0]
    assert (first["train/x"], first["costs/cum/judge"], first["training_step"]) == (1.0, 2.0, 3)
    assert "train/bad" not in first
    assert run.defined["training_step"] is None
    assert run.defined["train/*"] == "training_step"
    assert run.defined["costs/judge"] == "training_step"
    model.update_wandb_config({"nested": {"a": 1}})
    assert run.config == {"lr": 1, "nested": {"a": 1}}


def test_no_run_without_a_key_or_when_not_asked_for(
    tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prompted(tmp_path, report_metrics=["other"])._get_wandb_run() is None
    assert prompted(tmp_path, report_metrics=["wandb"])._get_wandb_run() is not None
    monkeypatch.delenv("WANDB_API_KEY")
    assert prompted(tmp_path, report_metrics=["wandb"])._get_wandb_run() is None
    assert prompted(tmp_path)._get_wandb_run() is None
    assert len(wandb.runs) == 1


def test_missing_package_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setenv("WANDB_API_KEY", "key")
    model = prompted(tmp_path)
    with caplog.at_level(logging.WARNING):
        asyncio.run(model.log(metrics={"x": 1.0}, step=1))
        asyncio.run(model.log(metrics={"x": 1.0}, step=2))
    assert caplog.text.count("wandb is not installed") == 1


def test_finished_run_is_opened_again(tmp_path: Path, wandb: FakeWandb) -> None:
    model = prompted(tmp_path)
    first = model._get_wandb_run()
    assert model._get_wandb_run() is first
    wandb.runs[0]._is_finished = True
    assert model._get_wandb_run() is not first


def test_config_conflicts_name_the_key(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    model.update_wandb_config({"a": {"b": 1}, "c": [1]})
    model.update_wandb_config({"a": {"b": 1, "d": 2}})
    with pytest.raises(ValueError, match=r"a\.d"):
        model.update_wandb_config({"a": {"d": 3}})
    with pytest.raises(TypeError, match="dict"):
        model.update_wandb_config([1])  # type: ignore[arg-type]
