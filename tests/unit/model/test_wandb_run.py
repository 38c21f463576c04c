"""The W&B run, with a stand-in for the package."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from art.model import Model, wandb_run


class FakeConfig(dict[str, Any]):
    def update(self, values: dict[str, Any], allow_val_change: bool = False) -> None:  # type: ignore[override]
        if not allow_val_change and any(self.get(key, value) != value for key, value in values.items()):
            raise ValueError("wandb refuses to change a value")
        super().update(values)


class FakeRun:
    def __init__(self, **given: Any) -> None:
        self.given = given
        self.config = FakeConfig(given["config"] or {})
        self.rows: list[dict[str, float]] = []
        self.defined: dict[str, str | None] = {}
        self.id, self.project = given["id"], given["project"]
        self._is_finished = False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.defined[name] = step_metric

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)


class FakeWandb(ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[FakeRun] = []
        self.run: FakeRun | None = None

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
    monkeypatch.setattr(wandb_run, "_open_runs", wandb_run._OpenRuns())
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
        "reinit": None,
    }
    first = run.rows[0]
    assert (first["train/x"], first["costs/cum/judge"], first["training_step"]) == (1.0, 2.0, 3)
    assert "train/bad" not in first
    assert run.defined["training_step"] is None
    assert run.defined["train/*"] == "training_step"
    assert run.defined["costs/judge"] == "training_step"
    model.update_wandb_config({"nested": {"a": 1}})
    assert run.config == {"lr": 1, "nested": {"a": 1}}


def test_open_runs_of_others_are_left_alone(tmp_path: Path, wandb: FakeWandb) -> None:
    first = prompted(tmp_path)._get_wandb_run()
    second = prompted(tmp_path, name="other")._get_wandb_run()
    assert second is not first
    wandb.runs[0]._is_finished = wandb.runs[1]._is_finished = True
    wandb.run = FakeRun(id="by the script", project="mail", config=None)
    prompted(tmp_path)._get_wandb_run()
    assert [run.given["reinit"] for run in wandb.runs] == [None, "create_new", "create_new"]


def test_open_run_of_the_same_model_is_shared(tmp_path: Path, wandb: FakeWandb) -> None:
    first = prompted(tmp_path)._get_wandb_run()
    again = prompted(tmp_path)
    again.update_wandb_config({"lr": 2})
    assert again._get_wandb_run() is first
    third = prompted(tmp_path)
    third.update_wandb_config({"lr": 3})
    assert third._get_wandb_run() is first
    assert prompted(tmp_path, project="chess")._get_wandb_run() is not first
    assert wandb.runs[0].config == {"lr": 3}
    by_script = FakeRun(id="mine", project="mail", config=None)
    wandb.run = by_script
    assert prompted(tmp_path, name="mine")._get_wandb_run() is by_script


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
