"""Scenarios are handed out in order, and none is forgotten."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from art.pipeline_trainer.scenarios import ScenarioSource
from tests.support.scripted_pipeline import make_scenarios

pytestmark = pytest.mark.asyncio


def make_source(number: int = 5, *, max_attempts: int = 2) -> ScenarioSource[Any]:
    return ScenarioSource(make_scenarios(number), max_attempts=max_attempts)


async def take(source: ScenarioSource[Any], number: int) -> list[int]:
    handouts = [await source.next() for _ in range(number)]
    return [handout.offset for handout in handouts if handout is not None]


async def test_scenarios_come_in_order_and_end() -> None:
    source = make_source(3)
    assert await take(source, 4) == [0, 1, 2]
    assert (source.handed_out, source.unfinished()) == (3, (0, 1, 2))


async def test_finished_scenarios_are_not_unfinished() -> None:
    source = make_source()
    await take(source, 4)
    source.finish([0, 2])
    assert source.unfinished() == (1, 3)


async def test_a_resumed_source_hands_out_the_unfinished_first() -> None:
    source = make_source(8)
    source.resume(5, (1, 4))
    assert source.unfinished() == (1, 4)
    handout = await source.next()
    assert handout is not None
    assert (handout.offset, handout.scenario["offset"]) == (1, 1)
    assert await take(source, 5) == [4, 5, 6, 7]


async def test_scenarios_that_end_early_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    source = make_source(3)
    source.resume(5, (1, 4))
    with caplog.at_level(logging.WARNING):
        assert await take(source, 3) == [1]
    assert "end after 3" in caplog.text
    assert (source.handed_out, source.unfinished()) == (3, (1,))


async def test_a_failed_scenario_is_tried_so_often() -> None:
    source = make_source(2)
    first = await source.next()
    assert first is not None
    assert source.try_again(first)
    again = await source.next()
    assert again is not None
    assert (again.offset, again.attempt) == (0, 2)
    assert not source.try_again(again)
    assert await take(source, 2) == [1]
    assert source.unfinished() == (1,)


async def test_a_restart_hands_out_again_what_is_unfinished() -> None:
    source = make_source(5)
    await take(source, 3)
    source.finish([1])
    source.restart()
    assert await take(source, 9) == [0, 2, 3, 4]


async def test_endless_and_asynchronous_iterators_are_taken() -> None:
    async def count() -> AsyncIterator[dict[str, Any]]:
        for number in itertools.count():
            await asyncio.sleep(0)
            yield {"number": number}

    for scenarios in (count(), itertools.cycle(make_scenarios(2))):
        source: ScenarioSource[Any] = ScenarioSource(scenarios, max_attempts=1)
        source.resume(2000, (1999,))
        assert await take(source, 3) == [1999, 2000, 2001]
