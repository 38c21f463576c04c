"""The server dies while adapters are loaded and 16 rollouts are in flight: another takes its place, or all are told."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from art.errors import AnswerInterruptedError, LocalServingUnavailableError
from tests.support.scripted_faults import Faults
from tests.support.serving import SETTINGS, Rollouts, Stand, eventually, serving
from tests.support.waiting import is_running

pytestmark = pytest.mark.integration

NO_RESTARTS = dataclasses.replace(SETTINGS, inference_restarts=0)


async def expect_all_served(stand: Stand, *steps: int) -> None:
    """Every step answers from its own files, without having been loaded over HTTP."""
    answers = [await stand.ask(step) for step in steps]
    assert len(set(answers)) == len(steps)
    assert "base" not in answers
    assert {f"policy@{step}" for step in steps} <= set((await stand.control())["adapters"])


@pytest.mark.asyncio
async def test_killed_while_loading_it_is_restarted_with_every_live_step(tmp_path: Path) -> None:
    async with serving(tmp_path, steps=(0, 1, 2)) as stand, Rollouts(stand) as rollouts:
        await stand.control(exit_on_load=-signal.SIGKILL)
        assert (await stand.publish(3)).step == 3
        await rollouts.go_on()
        await expect_all_served(stand, 0, 1, 2, 3)
        assert len(stand.started_pids) == 2
        assert [event["kind"] for event in stand.events] == ["recovering", "recovered"]
        assert [load["name"] for load in (await stand.control())["loads"]] == ["policy@3"]


@pytest.mark.asyncio
async def test_killed_after_the_load_it_loads_again_on_the_next_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand, Rollouts(stand) as rollouts:
        await stand.control(exit_after_load=-signal.SIGKILL)
        await stand.publish(1)
        await rollouts.go_on()
        await expect_all_served(stand, 0, 1)


@pytest.mark.asyncio
async def test_killed_by_the_probe_it_loads_again_on_the_next_server(tmp_path: Path) -> None:
    async with serving(tmp_path, monitored=False) as stand:
        await stand.control(exit_on_completion=-signal.SIGKILL)
        await stand.publish(1)
        await expect_all_served(stand, 0, 1)
        assert len(stand.started_pids) == 2


@pytest.mark.asyncio
async def test_death_is_noticed_within_a_second_and_rollouts_go_on(tmp_path: Path) -> None:
    async with serving(tmp_path, steps=(0, 1), monitored=False) as stand, Rollouts(stand) as rollouts:
        os.kill(stand.runtime.process.pid, signal.SIGKILL)
        await eventually(lambda: bool(stand.events), timeout_s=1.0)
        assert stand.events[0]["facts"]["exit_code"] == -9
        await rollouts.go_on()
        await expect_all_served(stand, 0, 1)


@pytest.mark.asyncio
async def test_without_restarts_one_error_tells_all_that_is_known(tmp_path: Path) -> None:
    async with serving(tmp_path, settings=NO_RESTARTS) as stand, Rollouts(stand) as rollouts:
        pid = stand.runtime.process.pid
        await stand.control(exit_on_load=-signal.SIGKILL)
        with pytest.raises(LocalServingUnavailableError, match="policy@1 could not be loaded") as caught:
            await stand.publish(1)
        facts, text = caught.value.facts, str(caught.value)
        assert (facts["pid"], facts["exit_code"], facts["attempts"], facts["step"]) == (pid, -9, 1, 1)
        assert facts["path"] == str(tmp_path / "checkpoints" / "0001")
        assert facts["health_before"] == "HTTP 200"
        assert facts["health_after"].startswith("no answer (ConnectError")
        assert facts["log_tail"].splitlines()[-2:] == [f"serving: pid={pid}", "scripted end: -9"]
        assert Path(facts["log_path"]).read_text().endswith(facts["log_tail"] + "\n")
        for fact in (f"pid {pid} killed by SIGKILL", "0001 (saved; a new run resumes from it)", "| scripted end: -9"):
            assert fact in text
        for error in await rollouts.all_fail():
            assert isinstance(error, LocalServingUnavailableError)
            assert f"pid {pid} killed by SIGKILL" in str(error)
        assert stand.registry.served_step == 0


async def expect_all_calls_fail_at_once(stand: Stand) -> None:
    began = time.monotonic()
    calls = (stand.publish(7), stand.ask(), stand.runtime.check_health(), stand.runtime.requests_in_flight())
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in errors] == [LocalServingUnavailableError] * 4
    assert time.monotonic() - began < 2.0


@pytest.mark.asyncio
async def test_restart_limit_ends_in_one_error_and_later_calls_fail_at_once(tmp_path: Path) -> None:
    starts = (Faults(), Faults(start_exit_code=3))
    async with serving(tmp_path, starts=starts) as stand, Rollouts(stand) as rollouts:
        pid = stand.runtime.process.pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(LocalServingUnavailableError) as caught:
            await stand.publish(1)
        assert "2 of 2 within 600 s" in caught.value.facts["restarts"]
        assert (caught.value.facts["pid"], caught.value.facts["exit_code"]) == (pid, -9)
        assert f"serving: pid={pid}" in caught.value.facts["log_tail"]  # of the one that served, not of its successors
        await rollouts.all_fail()
        told = [event for event in stand.events if event["kind"] == "unavailable"]
        assert len(told) == 1
        assert "exited with code 3; cause: ValueError: scripted failure of a start" in str(told[0]["error"])
        await expect_all_calls_fail_at_once(stand)
        assert len(stand.started_pids) == 3
        logs = sorted(path.name for path in (tmp_path / "logs").iterdir())
        assert logs == ["vllm-dedicated.1.log", "vllm-dedicated.2.log", "vllm-dedicated.log"]


@pytest.mark.asyncio
async def test_a_server_that_comes_back_wrong_is_no_recovery(tmp_path: Path) -> None:
    """The first restart answers with the base model's weights, the second as it should."""
    starts = (Faults(), Faults(answer_as="base"), Faults())
    async with serving(tmp_path, starts=starts, steps=(0, 1)) as stand, Rollouts(stand) as rollouts:
        os.kill(stand.runtime.process.pid, signal.SIGKILL)
        await eventually(lambda: len(stand.events) == 2, timeout_s=20.0)
        await rollouts.go_on()
        await expect_all_served(stand, 0, 1)
        assert len(stand.started_pids) == 3


@pytest.mark.asyncio
async def test_death_while_a_restarted_server_is_confirmed_is_noticed(tmp_path: Path) -> None:
    starts = (Faults(), Faults(exit_on_completion=5), Faults())
    async with serving(tmp_path, starts=starts, monitored=False) as stand:
        os.kill(stand.runtime.process.pid, signal.SIGKILL)
        await eventually(lambda: [event["kind"] for event in stand.events] == ["recovering", "recovered"], 20.0)
        assert len(stand.started_pids) == 3
        await expect_all_served(stand, 0)


@pytest.mark.asyncio
async def test_a_request_that_ends_servers_fails_before_it_has_used_up_all_restarts(tmp_path: Path) -> None:
    starts = [Faults(exit_on_text="poison")] * 4
    async with serving(tmp_path, starts=starts, monitored=False) as stand:
        with pytest.raises(AnswerInterruptedError, match=r"2 servers ended.*exited with code 1") as caught:
            await stand.ask(0, "poison")
        assert caught.value.facts["exit_code"] == 1
        assert await stand.ask(0)
        assert len(stand.started_pids) == 3


@pytest.mark.asyncio
async def test_what_a_killed_server_had_started_is_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, starts=(Faults(grandchild=True), Faults())) as stand:
        grandchild = int(stand.log.partition("grandchild: ")[2].split()[0])
        assert is_running(grandchild)
        os.kill(stand.runtime.process.pid, signal.SIGKILL)
        await eventually(lambda: len(stand.events) == 2, timeout_s=20.0)
        assert not is_running(grandchild)


@pytest.mark.asyncio
async def test_a_log_that_can_no_longer_be_written_ends_in_one_clear_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as stand, Rollouts(stand) as rollouts:
        (tmp_path / "logs").rename(tmp_path / "logs-before")
        (tmp_path / "logs").write_text("in the way")
        os.kill(stand.runtime.process.pid, signal.SIGKILL)
        error = (await rollouts.all_fail())[0]
        assert isinstance(error, LocalServingUnavailableError)
        assert "cannot be written" in str(error)
        await expect_all_calls_fail_at_once(stand)
