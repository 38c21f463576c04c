"""A server that speaks OpenAI's chat protocol and always says the same: for scripts that need no engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.support.scripted_http import HttpServer, write_chunk

REFUSED = "please fail"
ANSWER = "It is sunny."
TOOL_ARGUMENTS = '{"city": "Oslo"}'


class ChatServer(HttpServer):
    """Calls a tool where there are some and the last message is the user's; otherwise answers.

    Attributes:
        bodies: Every request's body, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[dict[str, Any]] = []

    async def respond(self, writer: asyncio.StreamWriter, method: str, path: str, body: dict[str, Any]) -> None:
        """Answer one request; one whose last message asks for it is refused."""
        self.bodies.append(body)
        last = body["messages"][-1]
        if last["content"] == REFUSED:
            error = {"error": {"message": "refused as asked", "type": "BadRequestError", "code": 400}}
            await self.write_answer(writer, json.dumps(error).encode(), status=400)
            return
        facts = {"id": "chat", "created": 0, "model": body["model"]}
        if body.get("stream"):
            await self.begin_stream(writer)
            for delta in _deltas():
                choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
                chunk = {**facts, "object": "chat.completion.chunk", "choices": [choice]}
                await write_chunk(writer, f"data: {json.dumps(chunk)}\n\n")
            await write_chunk(writer, "data: [DONE]\n\n")
            await write_chunk(writer, "")
            return
        calls_tool = bool(body.get("tools")) and last["role"] == "user"
        message = {"role": "assistant", **(_tool_call() if calls_tool else {"content": ANSWER})}
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if calls_tool else "stop",
            "logprobs": {"content": [_token(word) for word in ANSWER.split()]},
        }
        answer = {**facts, "object": "chat.completion", "choices": [choice], "usage": _usage()}
        await self.write_answer(writer, json.dumps(answer).encode())


def _deltas() -> list[dict[str, Any]]:
    words: list[dict[str, Any]] = [{"content": f"{word} "} for word in ANSWER.split()]
    return [{"role": "assistant", "content": ""}, *words, {}]


def _tool_call() -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": TOOL_ARGUMENTS}
    return {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}


def _token(word: str) -> dict[str, Any]:
    return {"token": word, "logprob": -0.5, "bytes": list(word.encode()), "top_logprobs": []}


def _usage() -> dict[str, int]:
    return {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
