from __future__ import annotations

import httpx
import pytest

from art.utils.log_http_errors import log_http_errors


def answer_with(response: httpx.Response) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(lambda request: response))


@log_http_errors
async def fetch(response: httpx.Response) -> str:
    async with answer_with(response) as client:
        answer = await client.get("http://server.test/models")
        answer.raise_for_status()
        return answer.text


@pytest.mark.parametrize(
    ("body", "explanation"), [({"detail": "no such step"}, "no such step"), ({"error": "busy"}, "{'error': 'busy'}")]
)
@pytest.mark.asyncio
async def test_json_body_becomes_the_message(body: dict[str, str], explanation: str) -> None:
    with pytest.raises(Exception, match="404") as caught:
        await fetch(httpx.Response(404, json=body))
    assert type(caught.value) is Exception
    assert str(caught.value) == f"[HTTP 404] http://server.test/models : {explanation}"
    assert isinstance(caught.value.__cause__, httpx.HTTPStatusError)


@pytest.mark.asyncio
async def test_other_bodies_and_other_errors_pass() -> None:
    with pytest.raises(httpx.HTTPStatusError):
        await fetch(httpx.Response(502, text="<html>bad gateway</html>"))
    assert await fetch(httpx.Response(200, text="fine")) == "fine"
    assert fetch.__name__ == "fetch"
