from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.chat.chat_completion import ChatCompletion
from openai.types.chat.chat_completion_chunk import ChatCompletionChunk

from art.openai import (
    consume_chat_completion_stream,
    consume_sync_chat_completion_stream,
    init_chat_completion,
    update_chat_completion,
)
from tests.support.scripted_openai import ScriptedOpenAI, serving


def make_chunk(*choices: dict[str, Any], **fields: Any) -> ChatCompletionChunk:
    identity = {"id": "c1", "created": 7, "model": "m@3", "object": "chat.completion.chunk"}
    return ChatCompletionChunk.construct(**{**identity, "choices": list(choices), **fields})


def part(index: int = 0, finish_reason: str | None = None, tokens: list[str] | None = None, **delta: Any) -> Any:
    logprobs = None
    if tokens is not None:
        logprobs = {"content": [{"token": token, "logprob": -1.0, "top_logprobs": []} for token in tokens]}
    return {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}


def tool_part(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
    name = fields.pop("name", None)
    return {"index": index, "function": {"name": name, "arguments": arguments}, **fields}


class FakeStream:
    def __init__(self, *chunks: ChatCompletionChunk) -> None:
        self.chunks = list(chunks)
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        for chunk in self.chunks:
            yield chunk

    def __iter__(self) -> Iterator[ChatCompletionChunk]:
        return iter(self.chunks)

    async def close(self) -> None:
        self.is_closed = True


def consume(*chunks: ChatCompletionChunk) -> ChatCompletion:
    stream: Any = FakeStream(*chunks)
    return consume_sync_chat_completion_stream(stream)


def test_text_logprobs_and_usage_are_joined() -> None:
    completion = consume(
        make_chunk(part(role="assistant", content="")),
        make_chunk(part(content="Hel", tokens=["token_id:1"], reasoning_content="let me ")),
        make_chunk(part(content="lo", tokens=["token_id:2", "token_id:3"], reasoning_content="think")),
        make_chunk(part(finish_reason="length"), system_fingerprint="fp"),
        make_chunk(usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}),
        make_chunk(usage={"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}),
    )
    (choice,) = completion.choices
    assert (completion.id, completion.model, completion.created) == ("c1", "m@3", 7)
    assert completion.object == "chat.completion"
    assert completion.system_fingerprint == "fp"
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello", "length")
    assert choice.message.reasoning_content == "let me think"  # type: ignore[attr-defined]
    assert choice.logprobs is not None
    assert [token.token for token in choice.logprobs.content or []] == ["token_id:1", "token_id:2", "token_id:3"]
    assert completion.usage is not None
    assert completion.usage.total_tokens == 4


def test_refusal_and_its_logprobs_are_joined() -> None:
    refusal_part = part(refusal="I ")
    refusal_part["logprobs"] = {"refusal": [{"token": "token_id:9", "logprob": -1.0, "top_logprobs": []}]}
    (choice,) = consume(make_chunk(refusal_part), make_chunk(part(refusal="won't"))).choices
    assert (choice.message.content, choice.message.refusal) == (None, "I won't")
    assert choice.logprobs is not None
    assert [token.token for token in choice.logprobs.refusal or []] == ["token_id:9"]


def test_choices_are_matched_by_index_though_each_chunk_carries_one() -> None:
    completion = consume(
        make_chunk(part(1, content="b", tokens=["token_id:1"])),
        make_chunk(part(0, content="a")),
        make_chunk(part(1, content="B", finish_reason="stop")),
        make_chunk(part(0, content="A", finish_reason="length")),
    )
    assert [(c.index, c.message.content, c.finish_reason) for c in completion.choices] == [
        (0, "aA", "length"),
        (1, "bB", "stop"),
    ]
    assert completion.choices[0].logprobs is None


def test_tool_calls_are_matched_by_index() -> None:
    completion = consume(
        make_chunk(part(tool_calls=[tool_part(0, "", id="call-a", type="function", name="look")])),
        make_chunk(part(tool_calls=[tool_part(1, '{"y":', id="call-b", type="function", name="go")])),
        make_chunk(part(tool_calls=[tool_part(0, '{"x": 1}'), tool_part(1, "2}")])),
        make_chunk(part(finish_reason="tool_calls")),
    )
    (choice,) = completion.choices
    assert [call.model_dump() for call in choice.message.tool_calls or []] == [
        {"id": "call-a", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}},
        {"id": "call-b", "type": "function", "function": {"name": "go", "arguments": '{"y":2}'}},
    ]
    assert choice.message.content is None


def test_old_function_calls_are_joined() -> None:
    (choice,) = consume(
        make_chunk(part(function_call={"name": "look", "arguments": '{"x'})),
        make_chunk(part(function_call={"arguments": '":1}'})),
    ).choices
    assert choice.message.function_call is not None
    assert choice.message.function_call.model_dump() == {"name": "look", "arguments": '{"x":1}'}


def test_init_gives_an_empty_completion_that_update_fills() -> None:
    chunk = make_chunk(part(content="a"))
    completion = init_chat_completion(chunk)
    assert completion.choices[0].message.content is None
    update_chat_completion(completion, chunk)
    update_chat_completion(completion, make_chunk(part(content="b")))
    assert completion.choices[0].message.content == "ab"
    assert chunk.choices[0].delta.content == "a"


@pytest.mark.asyncio
async def test_async_stream_is_consumed_and_each_chunk_shown_with_the_completion_so_far() -> None:
    seen: list[tuple[str | None, str | None]] = []

    def note(chunk: ChatCompletionChunk, completion: ChatCompletion) -> None:
        seen.append((chunk.choices[0].delta.content, completion.choices[0].message.content))

    stream: Any = FakeStream(make_chunk(part(content="a")), make_chunk(part(content="b")))
    completion = await consume_chat_completion_stream(stream, note)
    assert seen == [("a", "a"), ("b", "ab")]
    assert completion.choices[0].message.content == "ab"
    assert not stream.is_closed


@pytest.mark.asyncio
async def test_stop_iteration_ends_the_reading_and_closes_the_stream() -> None:
    def stop(chunk: ChatCompletionChunk, completion: ChatCompletion) -> None:
        raise StopIteration

    stream: Any = FakeStream(make_chunk(part(content="a")), make_chunk(part(content="b")))
    completion = await consume_chat_completion_stream(stream, stop)
    assert completion.choices[0].message.content == "a"
    assert stream.is_closed


@pytest.mark.asyncio
async def test_stream_without_chunks_is_an_assertion_error() -> None:
    stream: Any = FakeStream()
    with pytest.raises(AssertionError):
        await consume_chat_completion_stream(stream)
    with pytest.raises(AssertionError):
        consume_sync_chat_completion_stream(stream)


@pytest.mark.asyncio
async def test_streams_of_the_real_client_with_several_choices_are_put_together() -> None:
    async with (
        serving(ScriptedOpenAI("hello")) as server,
        AsyncOpenAI(base_url=server.base_url, api_key="k") as client,
    ):
        messages: Any = [{"role": "user", "content": "q"}]
        whole = await consume_chat_completion_stream(
            await client.chat.completions.create(model="m@3", messages=messages, stream=True, n=3)
        )

        def stop_at_text(chunk: ChatCompletionChunk, completion: ChatCompletion) -> None:
            if any(choice.message.content for choice in completion.choices):
                raise StopIteration

        begun = await consume_chat_completion_stream(
            await client.chat.completions.create(model="m@3", messages=messages, stream=True), stop_at_text
        )
    assert [(choice.index, choice.message.content) for choice in whole.choices] == [
        (0, "hello"),
        (1, "hello #1"),
        (2, "hello #2"),
    ]
    assert whole.usage is not None
    assert whole.usage.total_tokens == 15
    assert [choice.message.content for choice in begun.choices] == ["he"]
