from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

import art
import art.utils.s3
from art.errors import MissingDependencyError
from art.utils.benchmarking.log_constant_metrics_wandb import log_constant_metrics_wandb
from art.utils.benchmarking.pull_model_trajectories import pull_model_trajectories

MODEL = art.Model(name="agent", project="mail")


def test_trajectories_are_pulled_from_the_backup_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[dict[str, Any]] = []

    async def pull(**arguments: Any) -> str:
        pulled.append(arguments)
        return "folder"

    monkeypatch.setattr(art.utils.s3, "pull_model_from_s3", pull)
    monkeypatch.setenv("BACKUP_BUCKET", "runs")
    asyncio.run(pull_model_trajectories(MODEL))
    assert pulled == [
        {"model_name": "agent", "project": "mail", "s3_bucket": "runs", "exclude": ["checkpoints", "logs"]}
    ]


def test_missing_bucket_is_an_environment_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKUP_BUCKET", raising=False)
    with pytest.raises(EnvironmentError, match="BACKUP_BUCKET"):
        asyncio.run(pull_model_trajectories(MODEL))


def test_missing_wandb_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match=r"openpipe-art\[wandb\]"):
        asyncio.run(log_constant_metrics_wandb(MODEL, 1, {"val": {"x": 1.0}}))
