"""A reload meets a fault of the server while 16 rollouts are in flight: none of them fails."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from art.errors import AdapterLoadError, AdapterNotServedError, LocalServingUnavailableError, StaleAdapterError
from tests.support.serving import SETTINGS, Rollouts, Stand, save_step, serving

pytestmark = pytest.mark.integration


async def statuses(stand: Stand, step: int) -> list[object]:
    return [load["status"] for load in (await stand.control())["loads"] if load["name"] == f"policy@{step}"]


@pytest.mark.asyncio
async def test_closed_socket_is_waited_out(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, health_interval_s=2.0)
    async with serving(tmp_path, settings=settings) as stand, Rollouts(stand) as rollouts:
        await stand.control(close_socket_s=3.0)
        assert (await stand.publish(1)).took_s > 2.0
        await rollouts.go_on()
        assert await statuses(stand, 1) == [200]
        assert len(stand.started_pids) == 1


@pytest.mark.asyncio
async def test_unavailable_thrice_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="art.inference.publish")
    async with serving(tmp_path) as stand, Rollouts(stand) as rollouts:
        await stand.control(load_statuses=[503, 502, 504], completion_statuses=[503, 502, 504] * 4)
        publication = await stand.publish(1)
        await rollouts.go_on()
        assert await statuses(stand, 1) == [503, 502, 504, 200]
    assert (publication.step, publication.attempts) == (1, 4)
    lines = [record.getMessage() for record in caplog.records if record.name == "art.inference.publish"]
    first, second = lines
    assert first.startswith("adapter served: step=0 ")
    assert " attempts=1 " in first
    facts = f"took_s={publication.took_s:.3f} attempts=4 logprob_gap={publication.logprob_gap}"
    assert second == f"adapter served: step=1 name=policy@1 {facts}"


@pytest.mark.asyncio
async def test_a_step_that_the_server_has_already_is_confirmed_without_a_load(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand:
        assert (await stand.publish(0)).attempts == 0
        assert await statuses(stand, 0) == [200]


@pytest.mark.asyncio
async def test_a_load_that_takes_longer_than_the_limit_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, adapter_reload_timeout_s=1.0)
    async with serving(tmp_path, settings=settings) as stand, Rollouts(stand) as rollouts:
        await stand.control(load_delay_s=3.0)
        limit = r"policy@1 was not loaded within 1 s \(serving\['adapter_reload_timeout_s'\]\); last: ReadTimeout"
        with pytest.raises(LocalServingUnavailableError, match=limit) as caught:
            await stand.publish(1)
        assert caught.value.facts["health_after"] == "HTTP 200"
        assert "policy@1" not in (await stand.control(load_delay_s=0.0))["adapters"]
        await rollouts.go_on()
        assert (await stand.publish(1)).attempts == 1
        await rollouts.go_on()
        assert len(stand.started_pids) == 1


@pytest.mark.parametrize(
    "garbage", ['{"choices": "none"}', '{"data": [3]}', "[1, 2]", "<html>no</html>", '{"choices": []}']
)
@pytest.mark.asyncio
async def test_success_with_garbage_is_refused(tmp_path: Path, garbage: str) -> None:
    async with serving(tmp_path, monitored=False) as stand:
        await stand.control(garbage=garbage)
        with pytest.raises(AdapterNotServedError, match="has not the form that is known") as caught:
            await stand.publish(1)
        assert caught.value.step == 1
        with pytest.raises(LocalServingUnavailableError, match="the answer is no completion"):
            await stand.runtime.check_health()
        assert stand.registry.served_step == 0
        await stand.control(garbage=None)
        await stand.publish(1)
        assert await stand.ask(0) != await stand.ask(1)


@pytest.mark.asyncio
async def test_lost_reply_is_looked_up_and_not_loaded_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand, Rollouts(stand) as rollouts:
        await stand.control(drop_after_load=1)
        assert (await stand.publish(1)).logprob_gap == pytest.approx(0.0)
        await rollouts.go_on()
        assert await statuses(stand, 1) == ["applied, then dropped"]


@pytest.mark.asyncio
async def test_lost_request_is_sent_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand, Rollouts(stand) as rollouts:
        await stand.control(drop_before_load=2, drop_completions=20)
        await stand.publish(1)
        await rollouts.go_on()
        assert await statuses(stand, 1) == ["dropped", "dropped", 200]


@pytest.mark.asyncio
async def test_success_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand, Rollouts(stand) as rollouts:
        await stand.control(unlisted=True)
        with pytest.raises(AdapterNotServedError, match="does not list") as caught:
            await stand.publish(1)
        assert (caught.value.step, caught.value.served_steps) == (1, [0])
        assert stand.registry.served_step == 0
        await rollouts.go_on()
        await stand.control(unlisted=False)
        await stand.publish(1)


@pytest.mark.parametrize(("weights", "named"), [("previous", "step 0"), ("base", "the base model")])
@pytest.mark.asyncio
async def test_answer_from_other_weights_is_refused(tmp_path: Path, weights: str, named: str) -> None:
    async with serving(tmp_path) as stand, Rollouts(stand) as rollouts:
        await stand.control(answer_as=weights)
        with pytest.raises(StaleAdapterError, match=named) as caught:
            await stand.publish(1)
        assert (caught.value.step, caught.value.adapter_name) == (1, "policy@1")
        assert stand.registry.served_step == 0
        await rollouts.go_on()
        assert "policy@1" not in (await stand.control(answer_as=None))["adapters"]
        await stand.publish(1)
        await rollouts.go_on()


@pytest.mark.asyncio
async def test_refusal_is_final_and_in_the_servers_words(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand, Rollouts(stand) as rollouts:
        await stand.control(load_refusal="LoRA rank 8 is greater than max_lora_rank 4.")
        with pytest.raises(AdapterLoadError, match="LoRA rank 8 is greater than max_lora_rank 4") as caught:
            await stand.publish(1)
        assert (caught.value.status, caught.value.step) == (400, 1)
        assert await statuses(stand, 1) == [400]
        await rollouts.go_on()


@pytest.mark.asyncio
async def test_rank_above_the_engines_is_refused_without_asking(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand:
        with pytest.raises(AdapterLoadError, match="rank 64 is above the engine's max_lora_rank 8"):
            await stand.publisher.publish(1, save_step(tmp_path, 1, rank=64))
        assert await statuses(stand, 1) == []


@pytest.mark.asyncio
async def test_steps_within_the_window_stay_addressable(tmp_path: Path) -> None:
    """Retired names are unloaded, and their files go."""
    async with serving(tmp_path) as stand, Rollouts(stand) as rollouts:
        for step in range(1, 16):
            await stand.publish(step)
            await asyncio.gather(*(stand.ask(older) for older in range(max(0, step - 3), step + 1)))
        await rollouts.go_on()
        assert sorted((await stand.control())["adapters"]) == [f"policy@{step}" for step in (12, 13, 14, 15)]
        assert len(list((tmp_path / "serving").glob("*/*"))) <= 5
