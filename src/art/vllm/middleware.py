"""What every rollout request passes on its way into vLLM's HTTP layer.

It counts requests in flight by model name, so that an adapter's files stay as long as it is used, and asks for the
sampled tokens' logprobs, which training needs and scripts need not ask for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_GENERATION_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_CHAT_PATH = "/v1/chat/completions"


class RolloutMiddleware:
    """ASGI middleware for the generation routes; other routes pass untouched.

    Args:
        app: The application behind it.
        in_flight: Updated in place: model name → requests being answered.
    """

    def __init__(self, app: Application, in_flight: Counter[str]) -> None:
        self._app = app
        self._in_flight = in_flight

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in _GENERATION_PATHS:
            await self._app(scope, receive, send)
            return
        body = await _read_body(receive)
        if body is None:
            return  # the client went away before it had sent its request
        model_name, body = _prepare(scope["path"], body)
        self._in_flight[model_name] += 1
        try:
            await self._app(_with_length(scope, len(body)), _replay(body, receive), send)
        finally:
            self._in_flight[model_name] -= 1
            if not self._in_flight[model_name]:
                del self._in_flight[model_name]


def _prepare(path: str, body: bytes) -> tuple[str, bytes]:
    """Return the model's name and the body with what training needs; a body that is not ours to judge stays as it
    is."""
    try:
        fields = json.loads(body)
    except ValueError:
        return "", body
    if not isinstance(fields, dict):
        return "", body
    if path == _CHAT_PATH and not fields.get("logprobs"):
        fields["logprobs"] = True
        fields.pop("top_logprobs", None)
        body = json.dumps(fields).encode()
    return str(fields.get("model") or ""), body


async def _read_body(receive: Receive) -> bytes | None:
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    delivered = False

    async def replay() -> Message:
        nonlocal delivered
        if delivered:
            return await receive()  # the disconnect, when it comes
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _with_length(scope: MutableMapping[str, Any], length: int) -> MutableMapping[str, Any]:
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name.lower() not in (b"content-length", b"transfer-encoding")
    ]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())]}
