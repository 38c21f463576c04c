"""A server that is too busy to load an adapter, as often as a file says: for `--middleware` of a real one."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

FILE_VARIABLE = "BUSY_RELOAD_FILE"
LOAD_PATH = "/v1/load_lora_adapter"

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class BusyReload:
    """ASGI middleware: answers loads with 503 while the file holds a number above 0, and counts it down."""

    def __init__(self, app: Callable[[_Message, _Receive, _Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http" or scope["path"] != LOAD_PATH or not _is_busy():
            await self._app(scope, receive, send)
            return
        body = b'{"error": {"message": "too busy to load an adapter"}}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _is_busy() -> bool:
    path = Path(os.environ[FILE_VARIABLE])
    try:
        left = int(path.read_text())
    except (OSError, ValueError):
        return False
    path.write_text(str(left - 1))
    return left > 0
