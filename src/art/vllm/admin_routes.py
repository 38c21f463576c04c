"""Routes of our own beside vLLM's: what is in flight, and forgetting cached prompts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import MutableMapping
from typing import Any

from art.vllm.middleware import Application, Receive, Send

IN_FLIGHT_PATH = "/art/in_flight"
RESET_PREFIX_CACHE_PATH = "/art/reset_prefix_cache"


class AdminRoutes:
    """ASGI application that answers our two routes and passes everything else on.

    Args:
        app: The application behind it.
        engine: vLLM's engine client.
        in_flight: Model name → requests being answered.
    """

    def __init__(self, app: Application, engine: Any, in_flight: Counter[str]) -> None:
        self._app = app
        self._engine = engine
        self._in_flight = in_flight

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and (scope["method"], scope["path"]) == ("GET", IN_FLIGHT_PATH):
            await _answer(send, dict(self._in_flight))
        elif scope["type"] == "http" and (scope["method"], scope["path"]) == ("POST", RESET_PREFIX_CACHE_PATH):
            await _answer(send, {"reset": bool(await self._engine.reset_prefix_cache(reset_running_requests=True))})
        else:
            await self._app(scope, receive, send)


async def _answer(send: Send, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
