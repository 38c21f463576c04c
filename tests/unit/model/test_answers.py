"""Which names answered a block of code."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from art.model.answers import noting_answers
from art.model.openai_client import build_openai_client

pytestmark = pytest.mark.asyncio


def make_client() -> httpx.AsyncClient:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"data": []})
        model = json.loads(request.content)["model"]
        if model == "broken":
            return httpx.Response(400, json={"error": {"message": "no"}})
        message = {"role": "assistant", "content": "hi"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
        return httpx.Response(200, json=body)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


async def test_names_are_counted_by_block_and_task() -> None:
    touched: list[int] = []
    async with build_openai_client("http://127.0.0.1:1/v1", "key", make_client()) as client:

        async def ask(name: str) -> dict[str, int]:
            with noting_answers() as own:
                await client.chat.completions.create(model=name, messages=[{"role": "user", "content": "?"}])
            return dict(own.counts)

        with noting_answers(lambda: touched.append(1)) as answers:
            counts = list(await asyncio.gather(ask("m@1"), ask("m@2"), ask("m@1")))
            await client.models.list()
            with pytest.raises(Exception, match="no"):
                await ask("broken")
        await ask("m@9")
    assert counts == [{"m@1": 1}, {"m@2": 1}, {"m@1": 1}]
    assert answers.counts == {"m@1": 2, "m@2": 1}
    assert len(touched) == 3
