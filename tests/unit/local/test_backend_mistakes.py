"""What people get wrong with a backend that has not started anything yet."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import art
from art.local import LocalBackend
from tests.support.conversations import make_trajectory


async def groups() -> list[art.TrajectoryGroup]:
    return [art.TrajectoryGroup([make_trajectory()])]


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    return LocalBackend(path=str(tmp_path))


@pytest.mark.parametrize(
    ("model", "meant"),
    [
        (art.TrainableModel(name="m", project="p", base_model="b"), r"call `await model\.register\(backend\)` first"),
        (art.Model(name="m", project="p"), r"only an art\.TrainableModel can be trained"),
    ],
    ids=["not registered", "not trainable"],
)
def test_model_that_is_not_served(backend: LocalBackend, model: Any, meant: str) -> None:
    with pytest.raises(ValueError, match=meant):
        asyncio.run(backend.train(model, asyncio.run(groups())))


def test_groups_that_were_not_awaited(backend: LocalBackend) -> None:
    model: Any = art.TrainableModel(name="m", project="p", base_model="b")

    with pytest.raises(TypeError, match=r"await art\.gather_trajectory_groups"):
        asyncio.run(backend.train(model, groups()))  # type: ignore[arg-type]


def test_misspelt_configuration_is_refused_before_anything_starts(backend: LocalBackend, tmp_path: Path) -> None:
    model: Any = art.TrainableModel(name="m", project="p", base_model="b")
    model._internal_config = {"init_arg": {}}

    with pytest.raises(ValueError, match="did you mean 'init_args'"):
        asyncio.run(model.register(backend))

    assert list(tmp_path.iterdir()) == []


def test_iterating_over_training_says_to_await_it(backend: LocalBackend) -> None:
    model: Any = art.TrainableModel(name="m", project="p", base_model="b")

    with pytest.raises(TypeError, match=r"write `result = await backend\.train\(model, groups, …\)`"):
        for _ in backend.train(model, []):  # type: ignore[attr-defined]
            pass
