"""The gate is shared by several event loops and threads."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from art.errors import LocalServingUnavailableError
from art.inference.gate import ServingGate
from tests.support.waiting import wait_until


def wait_in_thread(gate: ServingGate, outcomes: list[str]) -> threading.Thread:
    async def wait() -> None:
        try:
            await gate.wait_open(time.monotonic() + 10.0)
            outcomes.append("open")
        except LocalServingUnavailableError as err:
            outcomes.append(str(err))

    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()
    return thread


@pytest.mark.parametrize(("decide", "outcome"), [("open", "open"), ("fail", "given up")])
def test_waiters_of_every_loop_are_told(decide: str, outcome: str) -> None:
    gate, outcomes = ServingGate(), []  # type: ServingGate, list[str]
    gate.close("restarting")
    threads = [wait_in_thread(gate, outcomes) for _ in range(4)]
    wait_until(lambda: len(gate._waiters) == 4)
    gate.open() if decide == "open" else gate.fail(LocalServingUnavailableError("given up"))
    for thread in threads:
        thread.join(10)
    assert outcomes == [outcome] * 4
    assert not gate._waiters


@pytest.mark.asyncio
async def test_a_gate_that_closes_again_keeps_its_waiters() -> None:
    gate = ServingGate()
    gate.close("first")
    waiting = asyncio.ensure_future(gate.wait_open(time.monotonic() + 0.2))
    await asyncio.sleep(0)
    gate.open()
    gate.close("second")
    with pytest.raises(LocalServingUnavailableError, match="in time: second"):
        await waiting


@pytest.mark.asyncio
async def test_trouble_is_waited_for_only_so_long() -> None:
    gate = ServingGate()
    await gate.wait_for_trouble(0.01)
    assert gate.trouble == ("", {})
    gate.close("pid 7 exited with code 1", {"pid": 7})
    began = time.monotonic()
    await gate.wait_for_trouble(10.0)
    assert time.monotonic() - began < 1.0
    assert gate.trouble == ("pid 7 exited with code 1", {"pid": 7})


def test_waiters_whose_loop_is_gone_are_no_error() -> None:
    gate = ServingGate()
    gate.close("restarting")
    loop = asyncio.new_event_loop()
    task = loop.create_task(gate.wait_open(time.monotonic() + 10.0))
    loop.run_until_complete(asyncio.sleep(0))
    waiters = set(gate._waiters)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    gate._waiters = waiters
    gate.open()
    assert gate.is_open


def test_after_a_failure_requests_wait_for_the_next_server() -> None:
    gate, outcomes = ServingGate(), []  # type: ServingGate, list[str]
    gate.fail(LocalServingUnavailableError("given up"))
    gate.renew("being started again")
    thread = wait_in_thread(gate, outcomes)
    wait_until(lambda: len(gate._waiters) == 1)
    gate.open()
    thread.join(10)
    assert outcomes == ["open"]
    assert gate.failure is None
