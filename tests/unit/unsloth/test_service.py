"""What the service does around a step that fails while the engine has yielded its memory. With fakes only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from art.errors import LocalServingUnavailableError, StaleAdapterError, TrainingError
from art.unsloth.service import UnslothService


class Machine:
    """Stands for runtime, worker and publisher; notes what is done in which order."""

    def __init__(self, *, can_sleep: bool, stale: bool) -> None:
        self.done: list[str] = []
        self.can_sleep = can_sleep
        self.stale = stale
        self.runtime = self.worker = self.publisher = self

    @asynccontextmanager
    async def yielded_to_trainer(self) -> AsyncIterator[None]:
        self.done.append("yield")
        try:
            yield
        finally:
            self.done.append("wake")

    async def is_sleeping(self) -> bool:
        return self.can_sleep

    async def onload(self) -> None:
        self.done.append("onload")

    async def offload(self) -> None:
        self.done.append("offload")

    async def train_step(self, *args: Any, **kwargs: Any) -> None:
        raise TrainingError("ordered by the test")

    async def confirm_served(self) -> float:
        self.done.append("probe")
        if self.stale:
            raise StaleAdapterError(
                "m@3 answers with other weights", step=3, adapter_name="m@3", logprob_gap=9.0, limit=0.2, evidence="far"
            )
        return 0.0


def fail_a_step(tmp_path: Path, *, can_sleep: bool, stale: bool) -> tuple[UnslothService, Machine]:
    machine = Machine(can_sleep=can_sleep, stale=stale)
    service = UnslothService(model_name="m", base_model="b", config={}, output_dir=str(tmp_path))
    service._parts = machine  # type: ignore[assignment]
    with pytest.raises(TrainingError, match="ordered by the test"):
        asyncio.run(service._train_shared(machine.train_step))
    return service, machine


def test_served_step_is_probed_after_a_wake_that_no_publication_follows(tmp_path: Path) -> None:
    service, machine = fail_a_step(tmp_path, can_sleep=True, stale=False)
    assert machine.done == ["yield", "onload", "offload", "wake", "probe"]
    service._raise_failure()


def test_an_engine_that_lost_its_weights_serves_nobody_any_more(tmp_path: Path) -> None:
    service, machine = fail_a_step(tmp_path, can_sleep=True, stale=True)
    assert machine.done[-1] == "probe"
    with pytest.raises(LocalServingUnavailableError, match="does not answer as before: m@3 answers with other weights"):
        service._raise_failure()


def test_an_engine_that_never_slept_is_not_probed(tmp_path: Path) -> None:
    service, machine = fail_a_step(tmp_path, can_sleep=False, stale=True)
    assert machine.done == ["yield", "onload", "offload", "wake"]
    service._raise_failure()
