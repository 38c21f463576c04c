"""A step that is served is had at once, also while another one is being published or an old one unloaded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from art.checkpoints import checkpoint_dir
from art.dev.settings import ServingSettings
from art.inference.runtime import AdapterFiles
from tests.support.serving import Stand, save_step, serving

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


async def acquire(stand: Stand, step: int) -> None:
    """Take a step as the service does."""
    stand.registry.acquire(step)
    await stand.publisher.serve_again(step, checkpoint_dir(stand.model_dir, step))


async def test_a_served_step_is_not_waited_for_while_another_is_published(tmp_path: Path) -> None:
    async with serving(tmp_path, monitored=False) as stand:
        await stand.control(load_delay_s=2.0)
        publishing = asyncio.ensure_future(stand.publisher.publish(1, save_step(tmp_path, 1)))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(1.0):
            await acquire(stand, 0)
        assert not publishing.done()
        await publishing
        assert await stand.ask(0)


async def test_a_step_acquired_while_it_is_unloaded_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServingSettings(max_live_adapters=2)
    async with serving(tmp_path, steps=(0, 1), settings=settings, monitored=False) as stand:
        unload = stand.runtime.unload_adapter
        acquired: list[asyncio.Task[None]] = []

        async def acquire_and_unload(name: str) -> None:
            acquired.append(asyncio.ensure_future(acquire(stand, 0)))
            await asyncio.sleep(0.05)
            await unload(name)

        monkeypatch.setattr(stand.runtime, "unload_adapter", acquire_and_unload)
        await stand.publish(2)
        await acquired[0]
        assert sorted(stand.registry.live) == [0, 1, 2]
        assert await stand.ask(0)


async def test_a_step_acquired_before_it_is_its_turn_is_not_unloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, steps=(0, 1, 2), monitored=False) as stand:
        unload, unloaded = stand.runtime.unload_adapter, []

        async def note(name: str) -> None:
            unloaded.append(name)
            await acquire(stand, 1)
            await unload(name)

        monkeypatch.setattr(stand.runtime, "unload_adapter", note)
        loads = len((await stand.control())["loads"])
        assert await stand.publisher.prune(frozenset()) == [0]
        assert unloaded == ["policy@0"]
        assert isinstance(stand.registry.live[1], AdapterFiles)
        assert len((await stand.control())["loads"]) == loads
        assert await stand.ask(1)
