from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import art
from art.local import LocalBackend
from art.local import backend as backend_module


class Untrained(LocalBackend):
    async def _train_model(self, *args: Any, **kwargs: Any) -> AsyncIterator[dict[str, float]]:
        yield {"loss/train": 1.0}

    async def _get_step(self, model: Any) -> int:
        return 3


@pytest.mark.parametrize("run", [object(), None])
def test_trained_step_labels_its_artifact_where_there_is_a_run(
    run: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[Any] = []
    monkeypatch.setattr(backend_module, "record_provenance", lambda *label: labels.append(label))
    model = art.TrainableModel(name="agent", project="p", base_model="b")
    monkeypatch.setattr(art.Model, "_get_wandb_run", lambda self: run)
    with Untrained(path=str(tmp_path)) as backend:
        result = asyncio.run(backend.train(model, []))
    assert (result.step, result.metrics["loss/train"]) == (3, 1.0)
    assert labels == ([] if run is None else [(run, "local-rl")])


def test_slow_or_failing_label_does_not_hold_a_step_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(backend_module, "LABEL_WAIT_S", 0.01)
    monkeypatch.setattr(backend_module, "record_provenance", lambda *label: release.wait(10) and 1 / 0)
    monkeypatch.setattr(art.Model, "_get_wandb_run", lambda self: object())
    model = art.TrainableModel(name="agent", project="p", base_model="b")

    async def train() -> int:
        with Untrained(path=str(tmp_path)) as backend:
            step = (await backend.train(model, [])).step
            release.set()
            return step

    assert asyncio.run(train()) == 3
