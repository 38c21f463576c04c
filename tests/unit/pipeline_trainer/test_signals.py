"""Signals that stop a pipeline."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from art.pipeline_trainer.signals import stop_on_signals


@pytest.fixture
def outer() -> Iterator[list[int]]:
    """Record what reaches the handler that was there before."""
    seen: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, previous)


@pytest.mark.asyncio
async def test_two_signals_are_told_and_the_third_goes_to_the_handler_before(outer: list[int]) -> None:
    told: list[tuple[Any, int]] = []
    with stop_on_signals(lambda number, count: told.append((number, count))):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
    assert told == [(signal.SIGTERM, 1), (signal.SIGTERM, 2)]
    assert outer == [signal.SIGTERM]
    os.kill(os.getpid(), signal.SIGTERM)
    assert outer == [signal.SIGTERM] * 2


def test_outside_the_main_thread_nothing_is_touched(outer: list[int]) -> None:
    handlers: list[Any] = []

    async def look() -> None:
        with stop_on_signals(lambda number, count: None):
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=lambda: asyncio.run(look()))
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.asyncio
async def test_runs_that_listen_at_once_are_all_told_and_may_end_in_any_order(outer: list[int]) -> None:
    told: list[str] = []
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    first, second = (
        stop_on_signals(lambda number, count, name=name: told.append(f"{name} {count}"))  # type: ignore[misc]
        for name in ("first", "second")
    )
    first.__enter__()
    second.__enter__()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0)
    assert sorted(told) == ["first 1", "second 1"]
    first.__exit__(None, None, None)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0)
    assert sorted(told) == ["first 1", "second 1", "second 2"]
    assert outer == []
    second.__exit__(None, None, None)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.asyncio
async def test_the_third_signal_passes_all_runs_by(outer: list[int]) -> None:
    with stop_on_signals(lambda number, count: None), stop_on_signals(lambda number, count: None):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert outer == [signal.SIGTERM]
