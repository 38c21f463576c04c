"""What a rollout sees of a server in trouble: a slow answer, or one clear error."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from art.errors import AnswerInterruptedError, LocalServingUnavailableError
from art.inference.gate import ServingGate
from tests.support.scripted_http import free_port
from tests.support.scripted_server import ScriptedServer, scripted_server
from tests.support.serving import rollout_client

MESSAGES: Any = [{"role": "user", "content": "Say yes."}]


async def ask(client: AsyncOpenAI) -> str:
    answer = await client.chat.completions.create(model="base", messages=MESSAGES)
    return str(answer.choices[0].message.content)


async def stream(client: AsyncOpenAI) -> str:
    chunks = await client.chat.completions.create(model="base", messages=MESSAGES, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


def client_of(server: ScriptedServer, gate: ServingGate | None = None, wait_s: float = 10.0) -> AsyncOpenAI:
    return rollout_client(f"{server.url}/v1", gate or ServingGate(), wait_s)


@pytest.mark.parametrize("request_answer", [ask, stream])
@pytest.mark.parametrize(
    "faults", [{"drop_completions": 2}, {"completion_statuses": [503, 502, 504]}, {"drops_after_errors": True}]
)
@pytest.mark.asyncio
async def test_requests_without_an_answer_are_sent_again(request_answer: Any, faults: dict[str, Any]) -> None:
    async with scripted_server() as server, client_of(server) as client:
        server.faults.change({"completion_statuses": [503], **faults})
        assert await request_answer(client) == "base"


@pytest.mark.asyncio
async def test_an_answer_cut_off_unseen_is_asked_for_again() -> None:
    async with scripted_server() as server, client_of(server) as client:
        server.faults.break_bodies = 2
        assert await ask(client) == "base"
        assert server.requests["/v1/chat/completions"] == 3


@pytest.mark.asyncio
async def test_time_that_an_answer_took_does_not_count_as_waiting() -> None:
    async with scripted_server() as server, client_of(server, wait_s=0.3) as client:
        server.faults.change({"answer_delay_s": 0.6, "break_bodies": 1})
        assert await ask(client) == "base"


@pytest.mark.asyncio
async def test_a_request_that_only_fails_itself_is_told_so() -> None:
    async with scripted_server() as server, client_of(server) as client:
        server.faults.completion_statuses = [500]
        with pytest.raises(openai.InternalServerError, match="scripted failure of a completion"):
            await ask(client)


@pytest.mark.asyncio
async def test_a_dead_engine_behind_a_healthy_server_is_waited_out() -> None:
    async with scripted_server() as server, client_of(server) as client:
        server.faults.engine = "failing"
        waiting = asyncio.ensure_future(ask(client))
        while server.requests["/v1/completions"] < 2:  # each 500 is followed by a request that shows whose fault it is
            await asyncio.sleep(0.01)
        assert not waiting.done()
        server.faults.engine = "alive"
        assert await waiting == "base"


@pytest.mark.asyncio
async def test_a_server_that_went_away_after_a_500_is_waited_for() -> None:
    """What answers, or does not, when the engine is asked for may be the next server."""
    gate = ServingGate()
    async with scripted_server() as server, client_of(server, gate) as client:
        server.faults.change({"completion_statuses": [500], "answer_delay_s": 0.2})
        waiting = asyncio.ensure_future(ask(client))
        while not server.requests["/v1/completions"]:
            await asyncio.sleep(0)
        gate.close("pid 7 killed by SIGKILL")
        gate.open()
        assert await waiting == "base"


@pytest.mark.asyncio
async def test_refusals_are_handed_on_at_once() -> None:
    async with scripted_server() as server, client_of(server) as client:
        with pytest.raises(openai.NotFoundError, match="`policy@9` does not exist"):
            await client.chat.completions.create(model="policy@9", messages=MESSAGES)
        assert server.requests.total() == 1


@pytest.mark.asyncio
async def test_waiting_ends_at_the_limit_with_what_was_tried() -> None:
    async with rollout_client(f"http://127.0.0.1:{free_port()}/v1", ServingGate(), 0.4) as client:
        with pytest.raises(LocalServingUnavailableError, match=r"attempts in .* s, last: ConnectError") as caught:
            await ask(client)
        assert caught.value.facts["attempts"] >= 2
        assert 0.4 <= caught.value.facts["waited_s"] < 5.0


@pytest.mark.asyncio
async def test_rollouts_wait_at_a_closed_gate_and_go_on_when_it_opens() -> None:
    gate = ServingGate()
    async with scripted_server() as server, client_of(server, gate) as client:
        gate.close("pid 7 killed by SIGKILL")
        waiting = [asyncio.ensure_future(ask(client)) for _ in range(16)]
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert not done
        assert server.requests.total() == 0
        gate.open()
        assert await asyncio.gather(*waiting) == ["base"] * 16


@pytest.mark.asyncio
async def test_giving_up_tells_every_waiter_and_whoever_comes_later() -> None:
    gate = ServingGate()
    async with scripted_server() as server, client_of(server, gate) as client:
        gate.close("pid 7 killed by SIGKILL")
        waiting = [asyncio.ensure_future(ask(client)) for _ in range(16)]
        await asyncio.sleep(0)
        gate.fail(LocalServingUnavailableError("given up", facts={"pid": 7}))
        errors = [*await asyncio.gather(*waiting, return_exceptions=True)]
        with pytest.raises(LocalServingUnavailableError) as caught:
            await ask(client)
        errors.append(caught.value)
        assert {(type(error), str(error)) for error in errors} == {(LocalServingUnavailableError, "given up")}
        assert len({id(error) for error in errors}) == 17  # each with a traceback of its own


@pytest.mark.asyncio
async def test_a_gate_that_stays_closed_ends_the_wait_with_the_reason() -> None:
    gate = ServingGate()
    gate.close("pid 7 killed by SIGKILL", {"pid": 7})
    async with rollout_client("http://127.0.0.1:1/v1", gate, 0.1) as client:
        with pytest.raises(LocalServingUnavailableError, match="in time: pid 7 killed by SIGKILL") as caught:
            await ask(client)
    assert caught.value.facts == {"pid": 7}


@pytest.mark.asyncio
async def test_a_stream_that_broke_off_fails_once_with_what_became_of_the_server() -> None:
    gate = ServingGate()
    async with scripted_server() as server, client_of(server, gate) as client:
        server.faults.break_streams = 1
        broken = asyncio.ensure_future(stream(client))
        while server.faults.break_streams:
            await asyncio.sleep(0)
        gate.close("pid 7 killed by SIGKILL", {"pid": 7, "exit_code": -9})  # learned a moment later
        with pytest.raises(AnswerInterruptedError, match=r"broke off after it had begun.*pid 7 killed") as caught:
            await broken
        assert (caught.value.facts["pid"], caught.value.facts["exit_code"]) == (7, -9)
        assert server.requests["/v1/chat/completions"] == 1
        gate.open()
        assert await stream(client) == "base"


@pytest.mark.asyncio
async def test_a_stream_that_broke_off_from_a_living_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art.inference.rollout_transport.NOTICE_S", 0.05)
    async with scripted_server() as server, client_of(server) as client:
        server.faults.break_streams = 1
        with pytest.raises(AnswerInterruptedError, match="RemoteProtocolError"):
            await stream(client)


@pytest.mark.asyncio
async def test_cancelled_requests_leave_nothing_behind() -> None:
    gate = ServingGate()
    async with scripted_server() as server, client_of(server, gate) as client:
        server.faults.engine = "silent"
        in_flight = asyncio.ensure_future(ask(client))
        while not server.in_flight["base"]:
            await asyncio.sleep(0)
        gate.close("restarting")
        at_the_gate = asyncio.ensure_future(ask(client))
        await asyncio.sleep(0)
        for task in (in_flight, at_the_gate):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not gate._waiters


@pytest.mark.asyncio
async def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    async with scripted_server() as server, client_of(server) as client:
        assert await ask(client) == "base"


@pytest.mark.asyncio
async def test_answers_are_handed_on_as_they_came() -> None:
    async with scripted_server() as server, client_of(server) as client:
        raw = await client.chat.completions.with_raw_response.create(model="base", messages=MESSAGES)
        direct = httpx.AsyncHTTPTransport(trust_env=False)
        async with httpx.AsyncClient(transport=direct) as plain:
            body = {"model": "base", "messages": MESSAGES}
            expected = await plain.post(f"{server.url}/v1/chat/completions", json=body)
        assert raw.http_response.content == expected.content
        assert dict(raw.headers) == dict(expected.headers)


@pytest.mark.parametrize("request_answer", [ask, stream])
@pytest.mark.asyncio
async def test_giving_up_tells_rollouts_whose_connection_stays_open(request_answer: Any) -> None:
    """As with an engine that hangs behind a server that lives."""
    gate = ServingGate()
    async with scripted_server() as server, client_of(server, gate) as client:
        server.faults.change({"engine": "silent"} if request_answer is ask else {"token_delay_s": 60.0})
        waiting = [asyncio.ensure_future(request_answer(client)) for _ in range(4)]
        while server.in_flight["base"] < 4:
            await asyncio.sleep(0)
        threading.Thread(target=gate.fail, args=(LocalServingUnavailableError("given up"),)).start()
        errors = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5.0)
        assert {(type(error), str(error)) for error in errors} == {(LocalServingUnavailableError, "given up")}
        assert not gate._in_flight
