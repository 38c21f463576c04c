"""Clean-up is not left half done."""

from __future__ import annotations

import asyncio
import logging

import pytest

from art.inference.tasks import uninterrupted


@pytest.mark.asyncio
async def test_result_and_error_are_those_of_the_work() -> None:
    async def answer() -> int:
        return 7

    async def fail() -> None:
        raise ValueError("broken")

    assert await uninterrupted(answer()) == 7
    with pytest.raises(ValueError, match="broken"):
        await uninterrupted(fail())


@pytest.mark.parametrize("cancellations", [1, 2])
@pytest.mark.asyncio
async def test_work_ends_before_the_cancellation_is_raised(cancellations: int) -> None:
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        ended.set()

    task = asyncio.ensure_future(uninterrupted(work()))
    for _ in range(cancellations):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.asyncio
async def test_an_error_of_cancelled_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    may_end = asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        raise ValueError("broken")

    task = asyncio.ensure_future(uninterrupted(work()))
    await asyncio.sleep(0)
    task.cancel()
    may_end.set()
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await task
    assert "broken" in caplog.text
