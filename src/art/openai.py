"""Put a streamed chat completion together.

Choices are matched by their index, since with `n > 1` a server sends one choice in each chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openai import AsyncStream, Stream
from openai.types.chat import chat_completion_chunk as chunks
from openai.types.chat.chat_completion import ChatCompletion, Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import ChatCompletionChunk
from openai.types.chat.chat_completion_message import ChatCompletionMessage, FunctionCall
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)

_REASONING_FIELDS = ("reasoning", "reasoning_content")
"""Names under which servers send the model's thinking; OpenAI's types have none."""


async def consume_chat_completion_stream(
    stream: AsyncStream[ChatCompletionChunk],
    on_chunk: Callable[[ChatCompletionChunk, ChatCompletion], Any] | None = None,
) -> ChatCompletion:
    """Read a stream to its end and give the full completion.

    Args:
        stream: What `create(stream=True)` gave.
        on_chunk: Called with each chunk and the completion so far, the chunk included. Raising StopIteration ends
            the reading: the stream is closed and the completion so far is given.

    Raises:
        AssertionError: The stream had no chunk.
    """
    completion: ChatCompletion | None = None
    async for chunk in stream:
        completion = _updated(completion, chunk)
        if on_chunk is None:
            continue
        try:
            on_chunk(chunk, completion)
        except StopIteration:
            await stream.close()
            break
    return _not_empty(completion)


def consume_sync_chat_completion_stream(stream: Stream[ChatCompletionChunk]) -> ChatCompletion:
    """Read a synchronous stream to its end and give the full completion.

    Raises:
        AssertionError: The stream had no chunk.
    """
    completion: ChatCompletion | None = None
    for chunk in stream:
        completion = _updated(completion, chunk)
    return _not_empty(completion)


def init_chat_completion(chunk: ChatCompletionChunk) -> ChatCompletion:
    """Make an empty completion with a chunk's identity and choices; add the chunk with `update_chat_completion`."""
    return ChatCompletion(
        id=chunk.id,
        choices=[_empty_choice(choice.index) for choice in chunk.choices],
        created=chunk.created,
        model=chunk.model,
        object="chat.completion",
    )


def update_chat_completion(chat_completion: ChatCompletion, chunk: ChatCompletionChunk) -> None:
    """Add a chunk to a completion: text and tool arguments are joined, logprobs extended, the last usage wins."""
    by_index = {choice.index: choice for choice in chat_completion.choices}
    for part in chunk.choices:
        choice = by_index.get(part.index)
        if choice is None:
            choice = by_index[part.index] = _empty_choice(part.index)
            chat_completion.choices.append(choice)
            chat_completion.choices.sort(key=lambda each: each.index)
        _extend_choice(choice, part)
    for field in ("service_tier", "system_fingerprint", "usage"):
        value = getattr(chunk, field)
        if value is not None:
            setattr(chat_completion, field, value)


def _updated(completion: ChatCompletion | None, chunk: ChatCompletionChunk) -> ChatCompletion:
    if completion is None:
        completion = init_chat_completion(chunk)
    update_chat_completion(completion, chunk)
    return completion


def _not_empty(completion: ChatCompletion | None) -> ChatCompletion:
    if completion is None:
        raise AssertionError("the stream ended without a single chunk")
    return completion


def _empty_choice(index: int) -> Choice:
    message = ChatCompletionMessage(role="assistant")
    return Choice(finish_reason="stop", index=index, logprobs=None, message=message)


def _extend_choice(choice: Choice, part: chunks.Choice) -> None:
    if part.finish_reason is not None:
        choice.finish_reason = part.finish_reason
    if part.logprobs is not None:
        if choice.logprobs is None:
            choice.logprobs = ChoiceLogprobs()
        for field in ("content", "refusal"):
            new = getattr(part.logprobs, field)
            if new is None:
                continue
            if getattr(choice.logprobs, field) is None:
                setattr(choice.logprobs, field, [])
            getattr(choice.logprobs, field).extend(new)
    _extend_message(choice.message, part.delta)


def _extend_message(message: ChatCompletionMessage, delta: chunks.ChoiceDelta) -> None:
    for field in ("content", "refusal", *_REASONING_FIELDS):
        new = getattr(delta, field, None)
        if new is not None:
            setattr(message, field, (getattr(message, field, None) or "") + new)
    if delta.function_call is not None:
        if message.function_call is None:
            message.function_call = FunctionCall(name="", arguments="")
        _extend_function(message.function_call, delta.function_call)
    for part in delta.tool_calls or []:
        _extend_tool_call(message, part)


def _extend_tool_call(message: ChatCompletionMessage, part: chunks.ChoiceDeltaToolCall) -> None:
    if message.tool_calls is None:
        message.tool_calls = []
    while len(message.tool_calls) <= part.index:
        empty = ChatCompletionMessageFunctionToolCall(id="", type="function", function=Function(name="", arguments=""))
        message.tool_calls.append(empty)
    call = message.tool_calls[part.index]
    if part.id:
        call.id = part.id
    if part.function is not None and call.type == "function":
        _extend_function(call.function, part.function)


def _extend_function(
    function: Function | FunctionCall, part: chunks.ChoiceDeltaToolCallFunction | chunks.ChoiceDeltaFunctionCall
) -> None:
    function.name = function.name or part.name or ""
    function.arguments += part.arguments or ""
