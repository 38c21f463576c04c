"""What rollouts' requests look like when they reach the engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import MutableMapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from art.vllm.middleware import RolloutMiddleware
from art.vllm.serving_registry import newest_name


async def send_through(
    path: str, body: bytes, *, on_cpu: bool = False, served: Sequence[str] = ()
) -> tuple[Any, int, Counter[str], Counter[str]]:
    """Send one request; return what the application got, the status, and the counts while and after it ran."""
    in_flight: Counter[str] = Counter()
    seen: list[Any] = []
    while_running: Counter[str] = Counter()
    statuses: list[int] = []

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        message = await receive()
        while_running.update(in_flight)
        headers = dict(scope["headers"])
        assert int(headers[b"content-length"]) == len(message["body"])
        seen.append(json.loads(message["body"]) if message["body"][:1] == b"{" else message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"Content-Length", str(len(body)).encode()), (b"x-other", b"1")],
    }
    resolve_name = partial(newest_name, SimpleNamespace(lora_requests=dict.fromkeys(served)))
    await RolloutMiddleware(app, in_flight, on_cpu=on_cpu, resolve_name=resolve_name)(scope, receive, send)
    return (seen[0] if seen else None), statuses[0], while_running, in_flight


@pytest.mark.asyncio
async def test_chat_requests_ask_for_logprobs_and_are_counted() -> None:
    body = json.dumps({"model": "m@1", "messages": [], "seed": 3}).encode()
    got, status, while_running, after = await send_through("/v1/chat/completions", body)
    assert got == {"model": "m@1", "messages": [], "seed": 3, "logprobs": True}
    assert status == 200
    assert while_running == Counter({"m@1": 1})
    assert not after


@pytest.mark.asyncio
async def test_what_was_asked_for_stays() -> None:
    body = json.dumps({"model": "m", "logprobs": True, "top_logprobs": 5}).encode()
    got, *_ = await send_through("/v1/chat/completions", body)
    assert got["top_logprobs"] == 5
    plain = json.dumps({"model": "m", "prompt": "a"}).encode()
    got, *_ = await send_through("/v1/completions", plain)
    assert got == {"model": "m", "prompt": "a"}


@pytest.mark.asyncio
async def test_streams_carry_every_token() -> None:
    body = json.dumps({"model": "m@1", "messages": [], "stream": True}).encode()
    got, *_ = await send_through("/v1/chat/completions", body)
    assert (got["logprobs"], got["return_token_ids"]) == (True, True)
    got, *_ = await send_through("/v1/completions", json.dumps({"model": "m", "stream": True}).encode())
    assert "return_token_ids" not in got


@pytest.mark.asyncio
async def test_malformed_bodies_reach_the_server_as_they_are() -> None:
    got, status, *_ = await send_through("/v1/chat/completions", b"not json")
    assert (got, status) == (b"not json", 200)


@pytest.mark.asyncio
async def test_cpu_engine_is_kept_from_what_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    body = json.dumps({"model": "m", "messages": [], "seed": 3}).encode()
    got, *_ = await send_through("/v1/chat/completions", body, on_cpu=True)
    assert "seed" not in got
    assert "seed is ignored" in caplog.text
    for harmful in ({"prompt_logprobs": 0}, {"echo": True, "logprobs": 1}):
        got, status, *_ = await send_through(
            "/v1/completions", json.dumps({"model": "m", "prompt": "a", **harmful}).encode(), on_cpu=True
        )
        assert (got, status) == (None, 400)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("asked_for", "answers"),
    [("m", "m@10"), ("m@2", "m@2"), ("base", "base"), ("m@3", "m@3"), ("other", "other@1"), ("m@x", "m@x")],
)
async def test_plain_name_stands_for_the_newest_step_and_any_other_for_itself(asked_for: str, answers: str) -> None:
    body = json.dumps({"model": asked_for, "prompt": "a"}).encode()
    got, _, while_running, after = await send_through("/v1/completions", body, served=["m@2", "m@10", "other@1"])
    assert got["model"] == answers
    assert while_running == Counter({answers: 1})
    assert not after
