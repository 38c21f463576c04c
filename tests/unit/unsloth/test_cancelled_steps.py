"""A step whose call is cancelled has ended when the call has: saved, or never to be. With a scripted trainer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from art.checkpoints import list_steps
from art.inference.publish import Publication
from art.local.hosting import ended_when_cancelled
from art.unsloth import child_worker
from art.unsloth.child_worker import ChildWorker
from art.unsloth.service import UnslothService
from mp_actors import ThreadActor, move_to_thread
from tests.support.held_trainer import HeldWorker
from tests.support.tiny_checkpoints import save_checkpoint
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

DEDICATED: Any = {"trainer_gpu_ids": [0], "inference_gpu_ids": [1]}
PACKED: Any = {"num_sequences": 2}


class Server:
    """Stands for runtime, registry and publisher."""

    def __init__(self) -> None:
        self.served_step = 0
        self.holds_after_serving = False

    @contextlib.asynccontextmanager
    async def yielded_to_trainer(self) -> AsyncIterator[None]:
        yield

    async def is_sleeping(self) -> bool:
        return False

    async def publish(self, step: int, path: Path) -> Publication:
        self.served_step = step
        if self.holds_after_serving:  # older steps are unloaded
            await asyncio.Event().wait()
        return Publication(step, f"m@{step}", None, 0.0)


class Stand:
    """A service with step 0, hosted as `LocalBackend` does."""

    def __init__(self, folder: Path, *, dedicated: bool) -> None:
        self.folder = folder
        self.server = Server()
        worker = HeldWorker(folder)
        self.worker = ChildWorker(worker, log_path=folder / "trainer.log", env={}) if dedicated else worker
        service = UnslothService(
            model_name="m",
            base_model="b",
            config=DEDICATED if dedicated else {},
            output_dir=str(folder / "model"),
        )
        parts = SimpleNamespace(
            worker=self.worker,
            runtime=self.server,
            registry=self.server,
            publisher=self.server,
            training=asyncio.Lock(),
            chat_template_kwargs={},
            close=self.worker.close,
        )
        service._parts = parts  # type: ignore[assignment]
        save_checkpoint(folder / "model", 0)
        self.actor: ThreadActor = move_to_thread(service)

    async def train(self) -> list[dict[str, float]]:
        async with ended_when_cancelled(self.actor):
            return [metrics async for metrics in self.actor.train(PACKED, SimpleNamespace(), {})]

    async def cancelled_in(self, where: str) -> asyncio.Task[Any]:
        """Begin a step and cancel it in a row or in saving, where it stays held."""
        (self.folder / f"hold-{where}").touch()
        training = asyncio.create_task(self.train())
        await asyncio.to_thread(wait_until, (self.folder / f"in-{where}").exists, 30.0)
        training.cancel()
        return training

    def let_go(self) -> None:
        for where in ("row", "save", "prepare"):
            (self.folder / f"hold-{where}").unlink(missing_ok=True)

    def steps(self) -> list[int]:
        return list_steps(self.folder / "model")


@pytest_asyncio.fixture(params=[True, False], ids=["dedicated", "shared"])
async def stand(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("art.unsloth.service.resolve_train_settings", lambda config, dev_config: None)
    stand = Stand(tmp_path, dedicated=request.param)
    await stand.actor._target._parts.worker.load() if request.param else stand.worker._load()  # type: ignore[union-attr]
    yield stand
    stand.let_go()
    await asyncio.to_thread(stand.actor.close)


async def expect_held(training: asyncio.Task[Any]) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    assert not training.done()
    training.cancel()  # who is impatient learns nothing earlier
    await asyncio.sleep(0)
    assert not training.done()


async def test_cancelled_in_a_row_it_ends_with_that_row_and_leaves_nothing(stand: Stand) -> None:
    (stand.folder / "endless").touch()  # more rows come until the cancellation has arrived
    training = await stand.cancelled_in("row")
    await expect_held(training)
    stand.let_go()
    with pytest.raises(asyncio.CancelledError):
        await training
    (stand.folder / "endless").unlink()
    assert stand.steps() == [0]
    assert len(await stand.train()) == 2
    assert (stand.steps(), stand.server.served_step) == ([0, 1], 1)


async def test_cancelled_while_it_is_saved_it_is_there_when_the_call_ends_and_can_be_served(stand: Stand) -> None:
    training = await stand.cancelled_in("save")
    await expect_held(training)
    assert stand.steps() == [0]
    stand.let_go()
    with pytest.raises(asyncio.CancelledError):
        await training
    assert (stand.steps(), stand.server.served_step) == ([0, 1], 0)
    assert await stand.actor.serve_newest() == stand.server.served_step == 1
    assert len(await stand.train()) == 2  # under the next number
    assert (stand.steps(), stand.server.served_step) == ([0, 1, 2], 2)


async def test_cancelled_when_it_is_served_already_it_is_known_to_be(stand: Stand) -> None:
    events: list[dict[str, Any]] = []
    stand.actor.on_event(events.append)
    stand.server.holds_after_serving = True
    training = asyncio.create_task(stand.train())
    await asyncio.to_thread(wait_until, lambda: stand.server.served_step == 1, 30.0)
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training
    assert [event["step"] for event in events if event["kind"] == "served"] == [1]


@pytest.mark.parametrize("stand", [True], indirect=True, ids=["dedicated"])
async def test_a_trainer_that_does_not_end_a_cancelled_step_is_killed(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_worker, "CANCELLED_CALL_LIMIT_S", 0.1)
    training = await stand.cancelled_in("save")
    with pytest.raises(asyncio.CancelledError):
        await training
    stand.let_go()
    assert "has not ended a cancelled call within 0.1 s and is killed" in caplog.text
    assert len(await stand.train()) == 2  # in a new process
    assert stand.steps() == [0, 1]


@pytest.mark.parametrize("stand", [True], indirect=True, ids=["dedicated"])
async def test_a_trainer_that_hangs_before_a_step_is_replaced_for_the_next_call(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_worker, "CANCELLED_CALL_LIMIT_S", 0.1)
    (stand.folder / "hold-prepare").touch()
    preparing = asyncio.create_task(stand.actor.prepare_batch([], None))
    await asyncio.to_thread(wait_until, (stand.folder / "in-prepare").exists, 30.0)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert len(await stand.train()) == 2  # waits for the new process
    assert "is killed" in caplog.text
    assert stand.steps() == [0, 1]
