"""A connection for each request, taken again by the next."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import httpx
import pytest

from art.inference.connection_lanes import LaneTransport
from tests.support.scripted_http import bind, free_port
from tests.support.scripted_server import ScriptedServer, scripted_server

BODY = {"model": "base", "prompt": "Hi"}


def lane_client(max_connections: int | None = None, **timeouts: float) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=max_connections, keepalive_expiry=4.0)
    return httpx.AsyncClient(transport=LaneTransport(limits), timeout=httpx.Timeout(10.0, **timeouts))


async def ask(client: httpx.AsyncClient, server: ScriptedServer) -> int:
    return (await client.post(f"{server.url}/v1/completions", json=BODY)).status_code


@pytest.mark.asyncio
async def test_requests_one_after_the_other_share_a_connection() -> None:
    async with scripted_server() as server, lane_client() as client:
        for _ in range(5):
            assert await ask(client, server) == 200
        assert server.connections == 1


@pytest.mark.asyncio
async def test_requests_at_once_have_each_their_own() -> None:
    async with scripted_server() as server, lane_client() as client:
        server.faults.answer_delay_s = 0.1
        assert await asyncio.gather(*(ask(client, server) for _ in range(50))) == [200] * 50
        assert server.connections == 50
        assert await asyncio.gather(*(ask(client, server) for _ in range(50))) == [200] * 50
        assert server.connections == 50


@pytest.mark.asyncio
async def test_more_requests_than_connections_wait_for_their_turn() -> None:
    async with scripted_server() as server, lane_client(max_connections=4) as client:
        server.faults.answer_delay_s = 0.02
        assert await asyncio.gather(*(ask(client, server) for _ in range(20))) == [200] * 20
        assert server.connections == 4


@pytest.mark.asyncio
async def test_waiting_for_a_turn_ends_with_the_pools_time_out() -> None:
    async with scripted_server() as server, lane_client(max_connections=1, pool=0.05) as client:
        server.faults.answer_delay_s = 0.5
        first, second = await asyncio.gather(ask(client, server), ask(client, server), return_exceptions=True)
        assert first == 200
        assert isinstance(second, httpx.PoolTimeout)
        assert await ask(client, server) == 200


@pytest.mark.asyncio
async def test_a_request_that_fails_or_is_cancelled_gives_its_turn_back() -> None:
    async with scripted_server() as server, lane_client(max_connections=1) as client:
        server.faults.drop_completions = 1
        with pytest.raises(httpx.RemoteProtocolError):
            await ask(client, server)
        server.faults.answer_delay_s = 5.0
        cancelled = asyncio.ensure_future(ask(client, server))
        while not server.in_flight["base"]:
            await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        server.faults.answer_delay_s = 0.0
        assert await ask(client, server) == 200


@pytest.mark.asyncio
async def test_an_abandoned_stream_gives_its_turn_back() -> None:
    async with scripted_server() as server, lane_client(max_connections=1) as client:
        async with client.stream("POST", f"{server.url}/v1/completions", json=BODY | {"stream": True}) as answer:
            async for _ in answer.aiter_lines():
                break
        assert await ask(client, server) == 200


@pytest.mark.asyncio
async def test_connections_idle_for_long_are_closed_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted_server() as server, lane_client() as client:
        server.faults.answer_delay_s = 0.1
        await asyncio.gather(*(ask(client, server) for _ in range(10)))
        server.faults.answer_delay_s = 0.0
        (lanes,) = client._transport._by_loop.values()  # type: ignore[attr-defined]
        monkeypatch.setattr(lanes, "_idle_limit_s", 0.0)  # all are idle for longer than that
        for _ in range(3):
            await ask(client, server)
        assert len(lanes._open) == 1


@pytest.mark.asyncio
async def test_closing_closes_connections_in_use_too() -> None:
    async with scripted_server() as server:
        client = lane_client()
        server.faults.engine = "silent"
        waiting = asyncio.ensure_future(ask(client, server))
        while not server.in_flight["base"]:
            await asyncio.sleep(0)
        await client.aclose()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


def test_one_event_loop_after_the_other_may_use_it() -> None:
    """As in a script that calls `asyncio.run` more than once; the connections of the first loop end with it."""
    port, started, may_end = free_port(), threading.Event(), threading.Event()

    async def serve() -> None:
        server = ScriptedServer("base")
        await server.start(bind("127.0.0.1", port))
        started.set()
        await asyncio.to_thread(may_end.wait)
        await server.close()

    async def ask_twice(client: httpx.AsyncClient) -> list[int]:
        url = f"http://127.0.0.1:{port}/v1/completions"
        return [(await client.post(url, json=BODY)).status_code for _ in range(2)]

    serving = threading.Thread(target=asyncio.run, args=(serve(),))
    serving.start()
    started.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # nothing can close the connections of a loop that is closed
        client = lane_client(max_connections=1)
        try:
            assert asyncio.run(ask_twice(client)) == [200, 200]
            assert asyncio.run(ask_twice(client)) == [200, 200]
        finally:
            may_end.set()
            serving.join(10)
            del client
            gc.collect()
