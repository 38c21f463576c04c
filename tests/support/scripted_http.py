"""As much of an HTTP server as a scripted server needs: it starts at once, and does with its connections as told."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from typing import Any

BACKLOG = 2048
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}


class Drop(Exception):
    """End the connection without (the rest of) an answer."""


class HttpServer:
    """Accepts connections and reads requests; `respond` answers them.

    Attributes:
        requests: Path → requests that came.
        connections: Connections that were made.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.connections = 0
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._begun: set[asyncio.StreamWriter] = set()
        self._outage: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Its address, without `/v1`."""
        assert self._listener is not None
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    async def respond(self, writer: asyncio.StreamWriter, method: str, path: str, body: dict[str, Any]) -> None:
        """Answer one request.

        Raises:
            Drop: Instead of an answer.
        """
        raise NotImplementedError

    async def start(self, listener: socket.socket) -> None:
        """Accept connections on a bound socket, which is closed by `close`."""
        self._listener = listener
        await self._accept()

    async def close(self) -> None:
        """Stop accepting and end all connections."""
        if self._outage is not None:
            self._outage.cancel()
            await asyncio.gather(self._outage, return_exceptions=True)
        self._stop_accepting()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def refuse_connections_for(self, seconds: float) -> None:
        """Close the listening socket for a while, and end the connections on which no answer has begun."""
        self._outage = asyncio.create_task(self._refuse_connections_for(seconds))

    async def write_answer(
        self, writer: asyncio.StreamWriter, body: bytes, *, status: int = 200, kind: str = "application/json"
    ) -> None:
        """Write a whole answer."""
        write_head(writer, status, kind, f"Content-Length: {len(body)}")
        writer.write(body)
        await writer.drain()

    async def begin_stream(self, writer: asyncio.StreamWriter) -> None:
        """Write the head of an answer that comes in events; from now on an outage leaves it alone."""
        self._begun.add(writer)
        write_head(writer, 200, "text/event-stream", "Transfer-Encoding: chunked")
        await writer.drain()

    async def _accept(self) -> None:
        assert self._listener is not None
        self._server = await asyncio.start_server(self._serve, sock=self._listener.dup(), backlog=BACKLOG)

    def _stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _refuse_connections_for(self, seconds: float) -> None:
        assert self._listener is not None
        self._stop_accepting()
        # On a socket that the parent holds as well, only `shutdown` has connections refused.
        self._listener.shutdown(socket.SHUT_RDWR)
        for writer in self._open.values():
            if writer not in self._begun:
                writer.transport.abort()
        await asyncio.sleep(seconds)
        await self._accept()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        self.connections += 1
        try:
            while True:
                method, path, body = await _read_request(reader)
                self.requests[path] += 1
                await self.respond(writer, method, path, body)
                self._begun.discard(writer)
        except (asyncio.IncompleteReadError, ConnectionError, Drop):
            return
        except asyncio.CancelledError:
            return  # by `close`; Python 3.11 would report it as an error of the stream's
        finally:
            del self._open[task]
            self._begun.discard(writer)
            writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in head[1:])}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return method, path, json.loads(body) if body else {}


def write_head(writer: asyncio.StreamWriter, status: int, kind: str, framing: str) -> None:
    """Write status line and headers."""
    reason = _REASONS.get(status, "Scripted")
    writer.write(f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n".encode())


async def write_chunk(writer: asyncio.StreamWriter, text: str) -> None:
    """Write one piece of a stream; an empty one ends it."""
    writer.write(f"{len(text):x}\r\n{text}\r\n".encode())
    await writer.drain()


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket of our own; a port given by number survives that the socket is closed for a while."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def free_port() -> int:
    """Return a port that nobody uses now."""
    with bind("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])
