"""Loading one adapter through faults: what is tried again, what is final, and what is said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from art.inference import adapter_reload
from art.inference.adapter_reload import (
    ReloadFailedError,
    ReloadRefusedError,
    ReloadReport,
    ServerGoneError,
    error_message,
    load_adapter_with_retry,
)
from tests.support.scripted_http import free_port
from tests.support.scripted_server import ScriptedServer, scripted_server
from tests.support.serving import save_step


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as running:
        yield running


async def no_news() -> None:
    return None


async def load(
    url: str, path: Path, limit_s: float = 10.0, require_process: Any = no_news, **more: Any
) -> ReloadReport:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await load_adapter_with_retry(
            client,
            url,
            name="policy@1",
            path=str(path),
            total_timeout_s=limit_s,
            require_process=require_process,
            **more,
        )


def statuses(server: ScriptedServer) -> list[Any]:
    return [load["status"] for load in server.loads]


@pytest.mark.asyncio
async def test_in_place_is_never_asked_for(server: ScriptedServer, tmp_path: Path) -> None:
    report = await load(server.url, save_step(tmp_path, 1))
    assert (report.attempts, report.found_in_list) == (1, False)
    assert [entry["inplace"] for entry in server.loads] == [False]


@pytest.mark.asyncio
async def test_transient_refusals_are_tried_again_and_told(server: ScriptedServer, tmp_path: Path) -> None:
    server.faults.load_statuses = [503, 504]
    told: list[tuple[int, str]] = []
    report = await load(
        server.url, save_step(tmp_path, 1), on_retry=lambda number, err: told.append((number, str(err)))
    )
    assert (report.attempts, statuses(server)) == (3, [503, 504, 200])
    assert told == [
        (1, "server answered 503 (scripted failure of a load)"),
        (2, "server answered 504 (scripted failure of a load)"),
    ]


@pytest.mark.asyncio
async def test_a_lost_reply_is_looked_up(server: ScriptedServer, tmp_path: Path) -> None:
    server.faults.drop_after_load = 1
    report = await load(server.url, save_step(tmp_path, 1))
    assert (report.attempts, report.found_in_list) == (1, True)


@pytest.mark.asyncio
async def test_a_late_success_of_an_earlier_attempt_counts(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt is waited for in vain and then gets through: the second is told that the name is loaded."""
    monkeypatch.setattr(adapter_reload, "ATTEMPT_TIMEOUT_S", 0.2)
    server.faults.load_delay_s = 0.5
    report = await load(server.url, save_step(tmp_path, 1))
    assert report.found_in_list
    assert report.attempts > 1
    assert list(server.adapters) == ["policy@1"]


@pytest.mark.asyncio
async def test_a_name_with_other_files_is_unloaded_first(server: ScriptedServer, tmp_path: Path) -> None:
    server.load("policy@1", str(save_step(tmp_path / "before", 1)))
    path = save_step(tmp_path, 1)
    report = await load(server.url, path)
    assert not report.found_in_list
    assert server.adapters == {"policy@1": path}


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500])
@pytest.mark.asyncio
async def test_other_refusals_are_final(server: ScriptedServer, tmp_path: Path, status: int) -> None:
    server.faults.load_statuses = [status]
    with pytest.raises(ReloadRefusedError, match="scripted failure of a load") as caught:
        await load(server.url, save_step(tmp_path, 1))
    assert (caught.value.status, caught.value.body) == (status, "scripted failure of a load")
    assert statuses(server) == [status]


@pytest.mark.asyncio
async def test_a_server_without_the_route_is_told_what_to_set(server: ScriptedServer, tmp_path: Path) -> None:
    with pytest.raises(ReloadRefusedError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        await load(f"{server.url}/elsewhere", save_step(tmp_path, 1))


@pytest.mark.asyncio
async def test_the_limit_holds_and_the_last_attempt_comes_at_its_end(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ReloadFailedError, match="ConnectError") as caught:
        await load(f"http://127.0.0.1:{free_port()}", save_step(tmp_path, 1), limit_s=1.0)
    assert caught.value.attempts >= 4
    assert 1.0 <= caught.value.waited_s <= time.monotonic() - began < 2.5
    assert isinstance(caught.value.__cause__, httpx.ConnectError)


@pytest.mark.asyncio
async def test_a_silent_server_is_waited_for_no_longer_than_the_limit(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_reload, "SHORTEST_ATTEMPT_S", 0.1)
    server.faults.change({"load_delay_s": 60.0, "list_delay_s": 60.0})
    with pytest.raises(ReloadFailedError, match="ReadTimeout") as caught:
        await load(server.url, save_step(tmp_path, 1), limit_s=0.5)
    assert caught.value.waited_s < 3.0


@pytest.mark.asyncio
async def test_waiting_for_a_restart_does_not_use_up_the_limit(server: ScriptedServer, tmp_path: Path) -> None:
    server.faults.drop_before_load = 1
    calls = 0

    async def restart_meanwhile() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            await asyncio.sleep(0.6)

    report = await load(server.url, save_step(tmp_path, 1), limit_s=0.5, require_process=restart_meanwhile)
    assert report.attempts == 2
    assert report.took_s >= 0.6


@pytest.mark.asyncio
async def test_a_process_that_is_gone_ends_the_attempts(server: ScriptedServer, tmp_path: Path) -> None:
    server.faults.drop_before_load = 5

    async def gone_after_one_attempt() -> None:
        if server.loads:
            raise ServerGoneError("killed by SIGKILL")

    with pytest.raises(ServerGoneError, match="killed by SIGKILL") as caught:
        await load(server.url, save_step(tmp_path, 1), require_process=gone_after_one_attempt)
    assert caught.value.attempts == 1
    assert 0.0 < caught.value.waited_s < 5.0


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.Response(400, json={"error": {"message": "rank too high", "code": 400}}), "rank too high"),
        (httpx.Response(400, json={"object": "error", "message": "older form"}), "older form"),
        (httpx.Response(404, json={"detail": "Not Found"}), "Not Found"),
        (httpx.Response(502, text=" <html>bad gateway</html> "), "<html>bad gateway</html>"),
        (httpx.Response(500, json=["odd"]), "['odd']"),
    ],
)
def test_the_servers_own_words_are_found(response: httpx.Response, words: str) -> None:
    assert error_message(response) == words
