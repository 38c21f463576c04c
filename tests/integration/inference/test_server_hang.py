"""The server's process lives, but it does not answer: waited out, or diagnosed, ended and replaced."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path

import pytest

from art.errors import AdapterNotServedError, LocalServingUnavailableError
from art.processes import ChildProcess
from tests.support.serving import SETTINGS, Rollouts, Stand, eventually, serving
from tests.support.waiting import is_running

pytestmark = pytest.mark.integration

IMPATIENT = dataclasses.replace(SETTINGS, health_interval_s=0.3, health_timeout_s=1.0)
SHORT_RELOAD = dataclasses.replace(SETTINGS, health_timeout_s=0.5, adapter_reload_timeout_s=1.0)


def stop_server(stand: Stand) -> int:
    pid = stand.runtime.process.pid
    os.kill(pid, signal.SIGSTOP)
    return pid


@pytest.mark.asyncio
async def test_stopped_and_continued_it_is_waited_for(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, health_timeout_s=10.0)
    async with serving(tmp_path, settings=settings) as stand, Rollouts(stand) as rollouts:
        pid = stop_server(stand)
        publishing = asyncio.ensure_future(stand.publish(1))
        done, _ = await asyncio.wait({publishing}, timeout=3.0)  # beyond the report of its health before
        assert not done
        os.kill(pid, signal.SIGCONT)
        assert (await publishing).step == 1
        await rollouts.go_on()
        assert stand.started_pids == [pid]
        assert stand.events == []


@pytest.mark.asyncio
async def test_stopped_for_good_it_is_ended_and_replaced_while_a_load_waits(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=IMPATIENT, steps=(0, 1)) as stand, Rollouts(stand) as rollouts:
        pid = stop_server(stand)
        assert (await stand.publish(2)).step == 2
        await rollouts.go_on()
        assert not is_running(pid)
        assert len(stand.started_pids) == 2
        assert stand.events[0]["text"] == f"pid {pid} killed by SIGKILL after it had stopped answering"
        assert len({await stand.ask(step) for step in (0, 1, 2)}) == 3


@pytest.mark.asyncio
async def test_a_load_that_was_waited_for_in_vain_finds_the_hang_by_itself(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=SHORT_RELOAD, monitored=False) as stand:
        pid = stop_server(stand)
        assert (await stand.publish(1)).step == 1
        assert not is_running(pid)
        assert await stand.ask(0) != await stand.ask(1)


@pytest.mark.asyncio
async def test_without_restarts_a_hang_is_told_from_a_death(tmp_path: Path) -> None:
    settings = dataclasses.replace(SHORT_RELOAD, inference_restarts=0)
    async with serving(tmp_path, settings=settings, monitored=False) as stand, Rollouts(stand) as rollouts:
        pid = stop_server(stand)
        with pytest.raises(LocalServingUnavailableError) as caught:
            await stand.publish(1)
        facts = caught.value.facts
        assert facts["health_before"].startswith("no answer (ReadTimeout")
        assert f"pid {pid} running (stopped by a signal)" in str(caught.value)
        assert facts["attempts"] >= 1
        for error in await rollouts.all_fail():
            assert "it was alive but did not answer and was ended" in str(error)


@pytest.mark.asyncio
async def test_an_engine_that_is_silent_behind_a_healthy_server_is_found(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=IMPATIENT, steps=(0, 1)) as stand, Rollouts(stand) as rollouts:
        await stand.control(engine="silent")
        await eventually(lambda: len(stand.events) == 2, timeout_s=30.0)
        await rollouts.go_on()
        assert len(stand.started_pids) == 2
        assert "after it had stopped answering" in stand.events[0]["text"]


@pytest.mark.asyncio
async def test_an_engine_that_fails_behind_a_healthy_server_is_found(tmp_path: Path) -> None:
    """Rollouts meet 500 for as long as it takes, and wait instead of failing."""
    async with serving(tmp_path, settings=IMPATIENT, steps=(0, 1)) as stand, Rollouts(stand) as rollouts:
        await stand.control(engine="failing")
        await eventually(lambda: len(stand.events) == 2, timeout_s=30.0)
        await rollouts.go_on()
        assert len(stand.started_pids) == 2


@pytest.mark.asyncio
async def test_a_silent_engine_is_replaced_while_a_loaded_adapter_waits_for_its_probe(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=IMPATIENT) as stand:
        await stand.control(engine="silent")
        assert (await stand.publish(1)).step == 1
        assert len(stand.started_pids) == 2
        assert await stand.ask(0) != await stand.ask(1)


@pytest.mark.asyncio
async def test_a_failing_engine_is_replaced_while_a_loaded_adapter_is_confirmed(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=IMPATIENT) as stand:
        await stand.control(engine="failing")
        assert (await stand.publish(1)).step == 1
        assert len(stand.started_pids) == 2
        assert await stand.ask(0) != await stand.ask(1)


@pytest.mark.asyncio
async def test_a_probe_that_alone_fails_is_refused_at_once(tmp_path: Path) -> None:
    """The engine lives: it is the adapter that it cannot answer for."""
    async with serving(tmp_path, settings=IMPATIENT, steps=(0, 1)) as stand:
        await stand.control(completion_statuses=[500])
        with pytest.raises(AdapterNotServedError, match=r"answered 500 .scripted failure of a completion"):
            await stand.publish(2)
        assert stand.registry.served_step == 1
        assert len(stand.started_pids) == 1


@pytest.mark.asyncio
async def test_a_busy_server_that_gets_on_is_left_alone(tmp_path: Path) -> None:
    """Each answer takes longer than a health check waits; the tokens that are counted show that it works."""
    settings = dataclasses.replace(IMPATIENT, health_timeout_s=0.3)
    async with serving(tmp_path, settings=settings) as stand:
        await stand.control(answer_delay_s=1.0)
        for _ in range(4):
            await asyncio.gather(*(stand.ask() for _ in range(4)))
        assert len(stand.started_pids) == 1


@pytest.mark.asyncio
async def test_a_diagnosis_of_the_server_before_does_not_end_its_successor(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=SHORT_RELOAD, monitored=False) as stand:
        stop_server(stand)
        with pytest.raises(LocalServingUnavailableError) as caught:
            await stand.runtime.check_health()
        await stand.runtime.end_hung(caught.value)
        await stand.runtime.settled()
        successor = stand.runtime.process.pid
        await stand.runtime.end_hung(caught.value)
        assert is_running(successor)
        assert len(stand.started_pids) == 2


@pytest.mark.asyncio
async def test_a_hung_process_that_cannot_even_be_killed_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is stuck in a driver: nobody waits for its end."""
    async with serving(tmp_path, settings=IMPATIENT) as stand, Rollouts(stand) as rollouts:
        with monkeypatch.context() as patch:
            patch.setattr(ChildProcess, "kill_group", lambda child: None)
            stop_server(stand)
            for error in await rollouts.all_fail(timeout_s=30.0):
                assert "the process does not react to SIGKILL" in str(error)
            with pytest.raises(LocalServingUnavailableError, match="does not react"):
                await stand.publish(1)
        assert len(stand.started_pids) == 1
