from __future__ import annotations

import asyncio
from typing import Any

import pytest

from art.vllm import engine_watch
from art.vllm.engine_watch import EngineGoneError, EngineWatch


class StubEngine:
    errored = False


class StubProcess:
    pid = 4711
    exitcode: int | None = None


@pytest.fixture(autouse=True)
def _poll_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "POLL_S", 0.0)


def make_watch() -> tuple[EngineWatch, StubEngine, StubProcess]:
    engine, process = StubEngine(), StubProcess()
    processes: Any = [process]
    return EngineWatch(engine, processes), engine, process


def test_call_that_the_engine_will_never_answer_ends_when_it_dies() -> None:
    async def scenario() -> tuple[str, list[str]]:
        watch, engine, process = make_watch()
        told: list[str] = []

        async def note_death() -> None:
            told.append(watch.describe())

        watch.start(note_death)
        call = asyncio.create_task(watch.unless_dead(asyncio.get_running_loop().create_future()))
        await asyncio.sleep(0)
        process.exitcode = -9
        engine.errored = True
        with pytest.raises(EngineGoneError) as caught:
            await call
        await watch.stop()
        return str(caught.value), told

    message, told = asyncio.run(scenario())
    assert message == "engine process 4711 killed by SIGKILL"
    assert told == [message]


def test_answers_and_errors_of_a_living_engine_pass() -> None:
    async def answer(value: int) -> int:
        if value < 0:
            raise KeyError(value)
        return value

    async def scenario() -> int:
        watch, _, _ = make_watch()
        with pytest.raises(KeyError):
            await watch.unless_dead(answer(-1))
        return await watch.unless_dead(answer(5))

    assert asyncio.run(scenario()) == 5


def test_error_of_a_dead_engine_says_that_it_is_dead() -> None:
    async def fail() -> None:
        raise ValueError("vLLM's own words")

    async def scenario() -> None:
        watch, engine, process = make_watch()
        engine.errored = True
        told: list[str] = []

        async def note_death() -> None:
            told.append("died")

        watch.start(note_death)
        process.exitcode = 1
        try:
            await watch.unless_dead(fail())
        finally:
            assert told == ["died"], "the owner is told before the callers are"
            await watch.stop()

    with pytest.raises(EngineGoneError, match="4711 exited with code 1: vLLM's own words"):
        asyncio.run(scenario())


def test_stopped_watch_does_not_take_the_end_for_a_death() -> None:
    async def scenario() -> list[str]:
        watch, engine, _ = make_watch()
        told: list[str] = []

        async def note_death() -> None:
            told.append("died")

        watch.start(note_death)
        await asyncio.sleep(0)
        await watch.stop()
        engine.errored = True
        await asyncio.sleep(0)
        return told

    assert asyncio.run(scenario()) == []
