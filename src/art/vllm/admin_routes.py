"""Routes of our own beside vLLM's: what is in flight, and forgetting cached prompts. They ask for the server's key."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import MutableMapping, Sequence
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
        api_keys: Bearer tokens of which one is needed; none: no token is.
    """

    def __init__(self, app: Application, engine: Any, in_flight: Counter[str], api_keys: Sequence[str]) -> None:
        self._app = app
        self._engine = engine
        self._in_flight = in_flight
        self._accepted = [f"Bearer {key}".encode() for key in api_keys]

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        called = (scope["method"], scope["path"]) if scope["type"] == "http" else None
        if called not in (("GET", IN_FLIGHT_PATH), ("POST", RESET_PREFIX_CACHE_PATH)):
            await self._app(scope, receive, send)
        elif not self._is_authorized(scope):
            await _answer(send, {"error": "Unauthorized"}, status=401)
        elif scope["path"] == IN_FLIGHT_PATH:
            await _answer(send, dict(self._in_flight))
        else:
            await _answer(send, {"reset": bool(await self._engine.reset_prefix_cache(reset_running_requests=True))})

    def _is_authorized(self, scope: MutableMapping[str, Any]) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return not self._accepted or any(secrets.compare_digest(given, wanted) for wanted in self._accepted)


async def _answer(send: Send, content: dict[str, Any], *, status: int = 200) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
