"""A chat server with the answers of a test: what stands in for an API over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from asyncio import StreamWriter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from tests.support.loop_thread import LoopThread
from tests.support.scripted_http import Drop, HttpServer, bind, write_chunk

Answer = dict[str, Any] | str | int | None
"""A message, its text, an HTTP status to fail with, or None: never answer."""


class ScriptedOpenAI(HttpServer):
    """Answers chat completions; asked for a stream, it streams.

    Attributes:
        answers: Given one after another; the last one is given again.
        answer_to: Makes the answer from a request, in place of `answers`.
        chats: The requests that came, oldest first.
        usage: Told with every answer.
    """

    def __init__(self, *answers: Answer, answer_to: Callable[[dict[str, Any]], Answer] | None = None) -> None:
        super().__init__()
        self.answers = list(answers)
        self.answer_to = answer_to
        self.chats: list[dict[str, Any]] = []
        self.usage: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

    @property
    def base_url(self) -> str:
        """Its address, with `/v1`."""
        return f"{self.url}/v1"

    async def respond(self, writer: StreamWriter, method: str, path: str, body: dict[str, Any]) -> None:
        """Answer a chat completion."""
        if path != "/v1/chat/completions":
            await self.write_answer(writer, b"{}", status=404)
            return
        self.chats.append(body)
        if self.answer_to is not None:
            answer = self.answer_to(body)
        else:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, int):
            error = {"error": {"message": "scripted failure", "type": "server_error", "code": answer}}
            await self.write_answer(writer, json.dumps(error).encode(), status=answer)
            return
        message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        assert isinstance(message, dict)
        if body.get("stream"):
            await self._stream(writer, body["model"], message, body.get("n") or 1)
        else:
            await self.write_answer(writer, json.dumps(self._completion(body["model"], message)).encode())

    def _completion(self, model: str, message: dict[str, Any]) -> dict[str, Any]:
        choices = [] if message.get("no_choices") else [{**_choice(message), "message": message}]
        return {"object": "chat.completion", "usage": self.usage, "choices": choices, **_identity(model)}

    async def _stream(self, writer: StreamWriter, model: str, message: dict[str, Any], choices: int) -> None:
        await self.begin_stream(writer)
        streams = [_deltas(message, suffix=f" #{index}" if index else "") for index in range(choices)]
        for deltas in itertools.zip_longest(*streams):  # one choice in each chunk, in turns, the last one first
            for index, delta in reversed([*enumerate(deltas)]):
                if delta is None:
                    continue
                is_last = delta is streams[index][-1]
                choice = {**(_choice(message) if is_last else {}), "index": index, "delta": delta}
                chunk = {"object": "chat.completion.chunk", "choices": [choice], **_identity(model)}
                await write_chunk(writer, f"data: {json.dumps(chunk)}\n\n")
        usage = {"object": "chat.completion.chunk", "choices": [], "usage": self.usage, **_identity(model)}
        await write_chunk(writer, f"data: {json.dumps(usage)}\n\n")
        await write_chunk(writer, "data: [DONE]\n\n")
        await write_chunk(writer, "")
        raise Drop


def _deltas(message: dict[str, Any], *, suffix: str) -> list[dict[str, Any]]:
    calls = [{"index": n, **call} for n, call in enumerate(message.get("tool_calls") or [])]
    text = message["content"] + suffix if message.get("content") else ""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in (text[: len(text) // 2], text[len(text) // 2 :]) if piece]
    return deltas + ([{"tool_calls": calls}] if calls else [])


def _identity(model: str) -> dict[str, Any]:
    return {"id": "chat-1", "created": 7, "model": model}


def _choice(message: dict[str, Any]) -> dict[str, Any]:
    token = {"token": "token_id:7", "bytes": None, "logprob": -0.5, "top_logprobs": []}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return {"index": 0, "finish_reason": reason, "logprobs": {"content": [token]}}


@contextlib.asynccontextmanager
async def serving(server: ScriptedOpenAI) -> AsyncIterator[ScriptedOpenAI]:
    """Serve on this event loop while the block runs."""
    listener = bind("127.0.0.1", 0)
    listener.listen()
    await server.start(listener)
    try:
        yield server
    finally:
        await server.close()


@contextlib.contextmanager
def serving_in_thread(server: ScriptedOpenAI) -> Iterator[ScriptedOpenAI]:
    """Serve on a loop of its own while the block runs: for clients that block."""
    loop = LoopThread()
    context = serving(server)
    try:
        loop.run(context.__aenter__())
        try:
            yield server
        finally:
            loop.run(context.__aexit__(None, None, None))
    finally:
        loop.close()
