"""A publication that is cut off, or fails half-way, leaves server and files as if it had not begun."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
import struct
from pathlib import Path

import pytest

from art.checkpoints import checkpoint_dir
from art.errors import AdapterLoadError, LocalServingUnavailableError, StaleAdapterError
from tests.support.scripted_faults import Faults
from tests.support.serving import SETTINGS, Rollouts, Stand, eventually, save_step, serving

pytestmark = pytest.mark.integration


def served_folders(stand: Stand) -> int:
    return len(list((stand.model_dir / "serving").glob("*/*")))


async def loads_of(stand: Stand, step: int) -> int:
    return [load["name"] for load in (await stand.control())["loads"]].count(f"policy@{step}")


@pytest.mark.parametrize("fault", [{"load_delay_s": 1.0}, {"list_delay_s": 1.0}])
@pytest.mark.asyncio
async def test_cancelled_while_the_server_works_on_it_it_is_withdrawn(tmp_path: Path, fault: dict[str, float]) -> None:
    async with serving(tmp_path, monitored=False) as stand, Rollouts(stand, 4) as rollouts:
        await stand.control(**fault)
        publishing = asyncio.ensure_future(stand.publish(1))
        requests = "/v1/load_lora_adapter" if "load_delay_s" in fault else "/v1/models"
        before = (await stand.control())["requests"].get(requests, 0)
        while (await stand.control())["requests"].get(requests, 0) == before:
            continue
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert "policy@1" not in (await stand.control(**dict.fromkeys(fault, 0.0)))["adapters"]
        assert stand.registry.served_step == 0
        await stand.publish(1)
        await rollouts.go_on()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_cancelled_at_twenty_moments_nothing_is_left_and_the_next_one_is_served(tmp_path: Path) -> None:
    moments_ms = iter(random.Random(7).sample(range(200), 20))  # of a publication that takes some 200 ms
    async with serving(tmp_path) as stand:
        await stand.control(load_delay_s=0.05, list_delay_s=0.05, answer_delay_s=0.02)
        async with Rollouts(stand, 4) as rollouts:
            for step, moment_ms in enumerate(moments_ms, start=1):
                publishing = asyncio.ensure_future(stand.publish(step))
                await asyncio.sleep(moment_ms / 1000)
                publishing.cancel()
                await asyncio.wait({publishing})
                assert stand.registry.served_step in ((step - 1, step) if publishing.cancelled() else (step,))
                assert (await stand.publish(step)).step == step
                await rollouts.go_on()
                live = {f"policy@{live}" for live in stand.registry.live}
                assert set((await stand.control())["adapters"]) == live
        while (await stand.control())["in_flight"]:
            continue
        await stand.publish(21)  # files go with the next publication after the last request that used them
        assert served_folders(stand) == len(stand.registry.live)
        assert len(stand.started_pids) == 1


@pytest.mark.asyncio
async def test_files_go_when_the_server_knows_nothing_of_a_load(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, adapter_reload_timeout_s=0.5)
    async with serving(tmp_path, settings=settings, monitored=False) as stand:
        await stand.control(drop_before_load=1_000)
        with pytest.raises(LocalServingUnavailableError, match="was not loaded within"):
            await stand.publish(1)
        assert served_folders(stand) == 1


@pytest.mark.asyncio
async def test_files_stay_while_a_load_may_still_get_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is still loading and the name cannot be unloaded: it may read the folder later."""
    monkeypatch.setattr("art.inference.supervised.UNLOAD_TIMEOUT_S", 0.2)
    settings = dataclasses.replace(SETTINGS, adapter_reload_timeout_s=0.5)
    async with serving(tmp_path, settings=settings, monitored=False) as stand:
        await stand.control(load_delay_s=60.0)
        with pytest.raises(LocalServingUnavailableError, match="was not loaded within"):
            await stand.publish(1)
        assert served_folders(stand) == 2


@pytest.mark.asyncio
async def test_a_name_left_behind_by_a_lost_publication_is_taken_over(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand:
        stray = save_step(tmp_path / "elsewhere", 1)
        await stand.control(load_refusal=None)
        response = await stand.runtime._client.post(
            "/v1/load_lora_adapter", {"lora_name": "policy@1", "lora_path": str(stray)}
        )
        assert response.is_success
        await stand.publish(1)
        folder = (await stand.control())["adapters"]["policy@1"]
        assert folder.startswith(str(tmp_path / "serving"))


@pytest.mark.asyncio
async def test_deleting_the_users_checkpoints_takes_nothing_from_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path, steps=(0, 1, 2)) as stand, Rollouts(stand) as rollouts:
        shutil.rmtree(tmp_path / "checkpoints")
        await rollouts.go_on()
        assert len({await stand.ask(step) for step in (0, 1, 2)}) == 3
        assert len(stand.started_pids) == 1


@pytest.mark.asyncio
async def test_other_weights_for_a_served_step_replace_it_or_leave_it(tmp_path: Path) -> None:
    async with serving(tmp_path, steps=(0, 1)) as stand:
        before = await stand.ask(1)
        rewritten = checkpoint_dir(tmp_path / "rewritten", 1)
        save_step(tmp_path / "rewritten", 1)
        weights = (rewritten / "adapter_model.safetensors").read_bytes()
        (rewritten / "adapter_model.safetensors").write_bytes(weights[:-4] + struct.pack("<f", 99.0))

        await stand.control(load_statuses=[500])
        with pytest.raises(AdapterLoadError, match="scripted failure of a load"):
            await stand.publisher.publish(1, rewritten)
        assert await stand.ask(1) == before

        await stand.publisher.publish(1, rewritten)
        assert await stand.ask(1) != before


@pytest.mark.asyncio
async def test_a_refused_step_does_not_stand_in_the_way_of_its_next_try(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand:
        for fault in ({"answer_as": "base"}, {"answer_as": "previous"}):
            await stand.control(**fault)
            with pytest.raises(StaleAdapterError):
                await stand.publish(1)
        await stand.control(answer_as=None)
        await stand.publish(1)
        assert await loads_of(stand, 1) == 3
        assert served_folders(stand) == 2


@pytest.mark.asyncio
async def test_older_steps_are_served_again_through_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path, starts=(Faults(), Faults()), steps=(0, 1, 2)) as stand:
        await stand.publisher.prune(frozenset())
        assert sorted(stand.registry.live) == [2]
        await stand.control(exit_after_load=-9)
        await stand.publisher.serve_again(0, checkpoint_dir(tmp_path, 0))
        await eventually(lambda: len(stand.started_pids) == 2)
        assert stand.registry.served_step == 2
        assert await stand.ask(0) != await stand.ask(2)


@pytest.mark.asyncio
async def test_cancelling_during_a_restart_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art.inference.publish.CLEAN_UP_LIMIT_S", 0.5)
    async with serving(tmp_path, starts=(Faults(), Faults(start_delay_s=60.0))) as stand:
        await stand.control(exit_on_load=-9)
        publishing = asyncio.ensure_future(stand.publish(1))
        await eventually(lambda: len(stand.started_pids) == 2)
        publishing.cancel()
        done, _ = await asyncio.wait({publishing}, timeout=5.0)
        assert done
        assert publishing.cancelled()
