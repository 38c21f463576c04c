"""When a server counts as hung, and what must not end the watching."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from art.errors import LocalServingUnavailableError
from art.inference.monitor import ServingMonitor
from tests.support.serving import eventually


class Watched:
    """As much of a runtime as is watched."""

    def __init__(self) -> None:
        self.checks = 0
        self.outcomes: Iterator[Exception | None] = iter(())
        self.in_flight: dict[str, int] = {}
        self.tokens: Iterator[float | None] = iter(())
        self.sleeping = False

    async def is_sleeping(self) -> bool:
        return self.sleeping

    async def progress_count(self) -> float | None:
        return next(self.tokens, None)

    async def requests_in_flight(self) -> dict[str, int]:
        return self.in_flight

    async def check_health(self) -> None:
        self.checks += 1
        outcome = next(self.outcomes, None)
        if outcome is not None:
            raise outcome


def silent(text: str = "silent") -> LocalServingUnavailableError:
    return LocalServingUnavailableError(text)


@asynccontextmanager
async def watching(watched: Watched, told: list[str], handler_error: Exception | None = None) -> AsyncIterator[None]:
    async def on_failure(error: LocalServingUnavailableError) -> None:
        told.append(str(error))
        if handler_error is not None:
            raise handler_error

    runtime: Any = watched
    monitor = ServingMonitor(runtime, interval_s=0.001, on_failure=on_failure)
    monitor.start()
    try:
        yield
    finally:
        await monitor.stop()


@pytest.mark.asyncio
async def test_three_failed_checks_in_a_row_are_told_once() -> None:
    watched, told = Watched(), []  # type: Watched, list[str]
    failed, well = silent(), None
    watched.outcomes = iter([failed, failed, well, failed, failed, failed, well])
    async with watching(watched, told):
        await eventually(lambda: watched.checks > 8)
    assert told == ["silent"]


@pytest.mark.asyncio
async def test_only_whoever_acts_logs_the_whole_diagnosis(caplog: pytest.LogCaptureFixture) -> None:
    watched, told = Watched(), []  # type: Watched, list[str]
    watched.outcomes = iter([silent("hung\n  last lines of the log:\n    | a")] * 3)
    async with watching(watched, told):
        await eventually(lambda: bool(told))
    assert "last lines" in told[0]
    assert [record.getMessage() for record in caplog.records] == [
        f"health check failed: {number} of 3 in a row: hung" for number in (1, 2, 3)
    ]


@pytest.mark.asyncio
async def test_a_server_that_was_given_up_is_told_once() -> None:
    watched, told = Watched(), []  # type: Watched, list[str]
    watched.outcomes = iter([silent("given up")] * 20)
    async with watching(watched, told):
        await eventually(lambda: watched.checks >= 12)
    assert told == ["given up"]


@pytest.mark.asyncio
async def test_faults_of_the_check_itself_do_not_end_the_watching() -> None:
    watched, told = Watched(), []  # type: Watched, list[str]
    watched.outcomes = iter([ValueError("no JSON")] * 3 + [silent()] * 3)
    async with watching(watched, told, handler_error=ValueError("handler")):
        await eventually(lambda: watched.checks > 8)
    assert told == ["health check broke: ValueError('no JSON')", "silent"]


@pytest.mark.asyncio
async def test_a_busy_server_is_asked_only_when_it_does_not_get_on() -> None:
    watched, told = Watched(), []  # type: Watched, list[str]
    watched.in_flight = {"policy@1": 4}
    watched.tokens = iter([10.0, 20.0, 30.0, 30.0, 30.0, 40.0])
    watched.outcomes = iter([silent()] * 2)
    async with watching(watched, told):
        await eventually(lambda: watched.checks > 3)
    assert told == []  # two checks failed while nothing moved, then tokens came


class Mute(Watched):
    """Never tells its progress, or only once its health has been asked for."""

    def __init__(self, *, tells: bool) -> None:
        super().__init__()
        self.in_flight = {"policy@1": 4}
        self._asked = asyncio.Event()
        self._tells = tells

    async def progress_count(self) -> float | None:
        await (self._asked if self._tells else asyncio.Event()).wait()
        return float(self.checks)

    async def check_health(self) -> None:
        self._asked.set()
        await asyncio.sleep(0)  # what was asked before is answered first
        await asyncio.sleep(0)
        await super().check_health()


@pytest.mark.asyncio
async def test_a_server_that_tells_nothing_is_asked_for_a_token_without_waiting_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would answer neither: the two time-outs do not add up."""
    monkeypatch.setattr("art.inference.monitor.HEAD_START_S", 0.001)
    watched, told = Mute(tells=False), []  # type: Mute, list[str]
    watched.outcomes = iter([silent()] * 3)
    async with watching(watched, told):
        await eventually(lambda: watched.checks > 3)
    assert told == ["silent"]


@pytest.mark.asyncio
async def test_a_busy_server_that_tells_its_progress_late_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art.inference.monitor.HEAD_START_S", 0.0)
    watched, told = Mute(tells=True), []  # type: Mute, list[str]
    watched.outcomes = iter([silent()] * 20)
    async with watching(watched, told):
        await eventually(lambda: watched.checks >= 12)
    assert told == []


@pytest.mark.asyncio
async def test_a_server_that_has_yielded_to_the_trainer_is_left_alone() -> None:
    watched, told = Watched(), []  # type: Watched, list[str]
    watched.sleeping = True
    async with watching(watched, told):
        await asyncio.sleep(0.02)
        assert watched.checks == 0
        watched.sleeping = False
        await eventually(lambda: watched.checks > 0)
