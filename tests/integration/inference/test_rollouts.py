"""Rollouts through faults of the server: streams that have begun, and a thousand at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from art.errors import AnswerInterruptedError, LocalServingUnavailableError
from art.inference.gate import ServingGate
from tests.support.scripted_faults import Faults
from tests.support.serving import MODEL, Stand, eventually, rollout_client, serving

pytestmark = pytest.mark.integration


async def stream(stand: Stand, letters: list[str]) -> str:
    chunks = await stand.client.chat.completions.create(
        model=f"{MODEL}@0", messages=[{"role": "user", "content": "Say yes."}], stream=True
    )
    async for chunk in chunks:
        letters.append(chunk.choices[0].delta.content or "")
    return "".join(letters)


@pytest.mark.asyncio
async def test_streams_that_had_begun_fail_once_with_the_facts_and_others_wait(tmp_path: Path) -> None:
    async with serving(tmp_path, starts=(Faults(token_delay_s=0.5), Faults())) as stand:
        whole = await stand.ask(0)
        begun: list[list[str]] = [[] for _ in range(8)]
        streams = [asyncio.ensure_future(stream(stand, letters)) for letters in begun]
        await eventually(lambda: all(begun))
        await stand.control(answer_delay_s=60.0)
        later = [asyncio.ensure_future(stream(stand, [])) for _ in range(4)]
        later += [asyncio.ensure_future(stand.ask(0)) for _ in range(4)]
        while (await stand.control())["in_flight"].get("policy@0", 0) < 16:
            continue
        pid = stand.runtime.process.pid
        os.kill(pid, signal.SIGKILL)
        for error in await asyncio.gather(*streams, return_exceptions=True):
            assert isinstance(error, AnswerInterruptedError)
            assert (error.facts["pid"], error.facts["exit_code"]) == (pid, -9)
        assert await asyncio.gather(*later) == [whole] * 8


@pytest.mark.asyncio
async def test_streams_learn_that_the_server_was_given_up(tmp_path: Path) -> None:
    starts = (Faults(token_delay_s=0.5), Faults(start_exit_code=3))
    async with serving(tmp_path, starts=starts) as stand:
        letters: list[str] = []
        begun = asyncio.ensure_future(stream(stand, letters))
        await eventually(lambda: bool(letters))
        os.kill(stand.runtime.process.pid, signal.SIGKILL)
        await eventually(lambda: not stand.gate.is_open)
        waiting = asyncio.ensure_future(stand.ask(0))
        with pytest.raises(LocalServingUnavailableError, match="killed by SIGKILL"):
            await waiting
        with pytest.raises((AnswerInterruptedError, LocalServingUnavailableError), match="killed by SIGKILL"):
            await begun


async def ask_many(client: AsyncOpenAI, count: int) -> tuple[set[str | None], float]:
    """Have `count` answers at once; return them, and the seconds of this process's CPU for each."""
    began = time.process_time()
    answers = await asyncio.gather(
        *(
            client.chat.completions.create(model=f"{MODEL}@0", messages=[{"role": "user", "content": str(number)}])
            for number in range(count)
        )
    )
    spent_s = time.process_time() - began
    return {answer.choices[0].message.content for answer in answers}, spent_s / count


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_thousand_rollouts_at_once_cost_no_more_each_than_a_few(tmp_path: Path) -> None:
    async with serving(tmp_path, monitored=False) as stand:
        whole = await stand.ask(0)
        await stand.control(answer_delay_s=1.0)
        async with rollout_client(stand.runtime.base_url, ServingGate(), 30.0) as client:
            _, few_s = await ask_many(client, 32)
            for _ in range(2):
                answers, many_s = await ask_many(client, 1024)
                assert answers == {whole}
        assert many_s < 3 * few_s  # a pool that looks through all its connections needs ten times as much


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_thousand_rollouts_outlive_their_server(tmp_path: Path) -> None:
    async with serving(tmp_path, monitored=False) as stand:
        whole = await stand.ask(0)
        await stand.control(answer_delay_s=60.0)
        rollouts = [asyncio.ensure_future(stand.ask(0)) for _ in range(1024)]
        while (await stand.control())["in_flight"].get("policy@0", 0) < 1024:
            continue
        os.kill(stand.runtime.process.pid, signal.SIGKILL)
        assert set(await asyncio.gather(*rollouts)) == {whole}
        assert len(stand.started_pids) == 2
