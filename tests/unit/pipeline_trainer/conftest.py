"""A scripted backend in a folder of its own, and pipelines on it that are quick to look around."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from art.pipeline_trainer import PipelineTrainer, supervisor, watchdog
from tests.support.scripted_pipeline import Model, ScriptedBackend, make_scenarios, register, roll_out

MakeTrainer = Callable[..., PipelineTrainer[Any, Any]]


@pytest.fixture
def backend(tmp_path: Path) -> ScriptedBackend:
    return ScriptedBackend(tmp_path)


@pytest_asyncio.fixture
async def model(backend: ScriptedBackend) -> Model:
    return await register(backend)


@pytest.fixture
def make_trainer(backend: ScriptedBackend, model: Model) -> MakeTrainer:
    """Make a trainer over so many scenarios; keywords go to `PipelineTrainer`."""

    def make(
        scenarios: Any = 8, *, rollout_fn: Any = roll_out, eval_fn: Any = None, config: Any = None, **settings: Any
    ) -> PipelineTrainer[Any, Any]:
        given = make_scenarios(scenarios) if isinstance(scenarios, int) else scenarios
        settings = {"num_rollout_workers": 2, "min_batch_size": 2, "max_batch_size": 2, **settings}
        return PipelineTrainer(model, backend, rollout_fn, given, config, eval_fn, **settings)

    return make


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the watchdog look often, and what does not end be given up soon."""
    monkeypatch.setattr(watchdog, "CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr(supervisor, "END_LIMIT_S", 0.3)
    monkeypatch.setattr(supervisor, "STEP_END_LIMIT_S", 0.3)
