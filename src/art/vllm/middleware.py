"""What every rollout request passes on its way into vLLM's HTTP layer.

It counts requests in flight by model name, so that an adapter's files stay as long as it is used, and asks for the
sampled tokens' logprobs, those of a stream's every token too, which training needs and scripts need not ask for. On a
CPU it keeps away from the engine what would end it (vLLM 0.20.2): a request's own `seed` when its prompt is read in
parts ("CPU Generator does not use offset"), and `prompt_logprobs` for an adapter when another request is in the batch.
A model's plain name, which many scripts ask for, stands for its newest step.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

logger = logging.getLogger(__name__)

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
        on_cpu: Whether the engine runs on a CPU.
        resolve_name: Gives the served name that a request's `model` stands for.
    """

    def __init__(
        self,
        app: Application,
        in_flight: Counter[str],
        *,
        on_cpu: bool,
        resolve_name: Callable[[str], str] = str,
    ) -> None:
        self._app = app
        self._in_flight = in_flight
        self._on_cpu = on_cpu
        self._resolve_name = resolve_name
        self._told_of_seed = False

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in _GENERATION_PATHS:
            await self._app(scope, receive, send)
            return
        body = await _read_body(receive)
        if body is None:
            return  # the client went away before it had sent its request
        model_name = ""
        fields = _parse(body)
        if fields is not None:
            refusal = self._adapt(scope["path"], fields)
            if refusal is not None:
                await _refuse(send, refusal)
                return
            model_name = str(fields.get("model") or "")
            if model_name:
                model_name = fields["model"] = self._resolve_name(model_name)
            body = json.dumps(fields).encode()
        self._in_flight[model_name] += 1
        try:
            await self._app(_with_length(scope, len(body)), _replay(body, receive), send)
        finally:
            self._in_flight[model_name] -= 1
            if not self._in_flight[model_name]:
                del self._in_flight[model_name]

    def _adapt(self, path: str, fields: dict[str, Any]) -> str | None:
        """Add what training needs and take away what the engine cannot bear; return why a request is refused."""
        if path == _CHAT_PATH and not fields.get("logprobs"):
            fields["logprobs"] = True
            fields.pop("top_logprobs", None)
        if path == _CHAT_PATH and fields.get("stream"):
            # A chunk whose text is held back (half a character, the beginning of a tool call) would otherwise not be
            # sent, and the logprobs of its tokens would be lost (vLLM 0.20.2).
            fields["return_token_ids"] = True
        if not self._on_cpu:
            return None
        if fields.get("prompt_logprobs") is not None or (fields.get("echo") and fields.get("logprobs") is not None):
            return "logprobs of prompts are not served on a CPU: with an adapter they end this release of vLLM"
        if fields.pop("seed", None) is not None and not self._told_of_seed:
            self._told_of_seed = True
            logger.warning("a request's own seed is ignored on a CPU: it ends this release of vLLM")
        return None


def _parse(body: bytes) -> dict[str, Any] | None:
    """Return a request's fields; None for a body that is not ours to judge."""
    try:
        fields = json.loads(body)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


async def _refuse(send: Send, message: str) -> None:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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
