from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat.chat_completion import Choice

from art.auto_trajectory import auto_trajectory, capture_auto_trajectory, parse_sse_to_chat_completion
from art.trajectories import History, Trajectory
from tests.support.conversations import make_tool_call

try:
    import httpx2
except ImportError:  # OpenAI's client used httpx before
    LIBRARIES: list[Any] = [httpx]
else:
    LIBRARIES = [httpx, httpx2]

URL = "http://server.test/v1/chat/completions"
SYSTEM = {"role": "system", "content": "be short"}
USER = {"role": "user", "content": "one"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}

every_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)


def completion(text: str | None, **message: Any) -> dict[str, Any]:
    choices = [
        {"index": n, "finish_reason": "stop", "message": {"role": "assistant", "content": part, **message}}
        for n, part in enumerate([text, "never taken"])
    ]
    return {"id": "c1", "object": "chat.completion", "created": 7, "model": "m", "choices": choices}


def events(*texts: str) -> bytes:
    chunks = [
        {
            "id": "c1",
            "object": "chat.completion.chunk",
            "created": 7,
            "model": "m",
            "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
        }
        for text in texts
    ]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def echo(request: Any) -> Any:
    """Answer with the last message's text in capitals, streamed in single letters if the request asks for it."""
    library = LIBRARIES[-1] if type(request).__module__.startswith("httpx2") else httpx
    body = json.loads(request.content)
    text = body["messages"][-1]["content"].upper()
    if body.get("stream"):
        return streamed(library, *(events(*text)[n : n + 50] for n in range(0, len(events(*text)), 50)))
    return library.Response(200, json=completion(text))


def streamed(library: Any, *pieces: bytes | Exception, **headers: str) -> Any:
    def give() -> Iterator[bytes]:
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    class Stream(library.AsyncByteStream, library.SyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in give():
                yield piece

        __iter__ = staticmethod(give)

    return library.Response(200, headers={"content-type": "text/event-stream", **headers}, stream=Stream())


def async_client(library: Any, handler: Callable[[Any], Any] = echo) -> Any:
    return library.AsyncClient(transport=library.MockTransport(handler))


def openai_client(handler: Callable[[Any], Any] = echo) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url="http://server.test/v1", api_key="k", http_client=async_client(LIBRARIES[-1], handler), max_retries=0
    )


async def ask(client: AsyncOpenAI, *messages: Any, **options: Any) -> Any:
    return await client.chat.completions.create(model="m", messages=list(messages), **options)


def texts(history: Trajectory | History) -> list[str]:
    """Text of each entry, that of a Choice in brackets."""
    entries: list[Any] = list(history.messages_and_choices)
    return [f"[{e.message.content}]" if isinstance(e, Choice) else str(e.get("content")) for e in entries]


def histories_of(trajectory: Trajectory) -> list[Trajectory | History]:
    return [trajectory, *trajectory.additional_histories]


def patched_methods() -> list[Any]:
    return [getattr(library, name).send for library in LIBRARIES for name in ("AsyncClient", "Client")]


# What is recorded -------------------------------------------------------------------------------------------


@every_library
@pytest.mark.asyncio
async def test_completion_is_recorded_with_its_messages_and_tools(library: ModuleType) -> None:
    async def rollout() -> None:
        async with async_client(library) as client:
            await client.post(URL, json={"messages": [SYSTEM, USER], "tools": [TOOL]})

    trajectory = await capture_auto_trajectory(rollout())
    assert texts(trajectory) == ["be short", "one", "[ONE]"]
    assert trajectory.tools == [TOOL]
    assert trajectory.additional_histories == []
    assert trajectory.metrics["duration"] >= 0


@pytest.mark.asyncio
async def test_openai_client_is_recorded_and_gets_its_answer() -> None:
    answers: list[Any] = []

    async def rollout() -> None:
        async with openai_client() as client:
            answers.append(await ask(client, USER))

    trajectory = await capture_auto_trajectory(rollout())
    assert trajectory.messages_and_choices[-1] == answers[0].choices[0]


@every_library
def test_sync_client_is_recorded_also_from_a_thread(library: Any) -> None:
    def work() -> None:
        with library.Client(transport=library.MockTransport(echo)) as client:
            client.post(URL, json={"messages": [USER]})
            with client.stream("POST", URL, json={"messages": [SYSTEM], "stream": True}) as response:
                response.read()

    async def rollout() -> None:
        await asyncio.to_thread(work)

    trajectory = asyncio.run(capture_auto_trajectory(rollout()))
    assert texts(trajectory) == ["one", "[ONE]"]
    assert [texts(history) for history in trajectory.additional_histories] == [["be short", "[BE SHORT]"]]


@pytest.mark.asyncio
async def test_stream_reaches_the_reader_and_is_recorded_whole() -> None:
    read: list[str] = []

    async def rollout() -> None:
        async with openai_client() as client:
            async for chunk in await ask(client, USER, stream=True):
                read.append(chunk.choices[0].delta.content)

    trajectory = await capture_auto_trajectory(rollout())
    assert read == ["O", "N", "E"]
    assert texts(trajectory) == ["one", "[ONE]"]


def test_sync_openai_stream_is_recorded() -> None:
    library = LIBRARIES[-1]

    async def rollout() -> None:
        http_client = library.Client(transport=library.MockTransport(echo))
        with OpenAI(base_url="http://server.test/v1", api_key="k", http_client=http_client) as client:
            for _ in client.chat.completions.create(model="m", messages=[USER], stream=True):  # type: ignore[list-item]
                pass

    assert texts(asyncio.run(capture_auto_trajectory(rollout()))) == ["one", "[ONE]"]


@every_library
@pytest.mark.asyncio
async def test_compressed_stream_is_recorded(library: ModuleType) -> None:
    compressed = gzip.compress(events("h", "i"))

    def answer(request: Any) -> Any:
        return streamed(library, compressed[:20], compressed[20:], **{"content-encoding": "gzip"})

    async def rollout() -> None:
        async with async_client(library, answer) as client:
            await client.post(URL, json={"messages": [USER]})  # httpx reads the body by itself
            async with client.stream("POST", URL, json={"messages": [SYSTEM]}) as response:
                assert await response.aread() == events("h", "i")

    trajectory = await capture_auto_trajectory(rollout())
    assert texts(trajectory) == ["one", "[hi]"]
    assert texts(trajectory.additional_histories[0]) == ["be short", "[hi]"]


@pytest.mark.asyncio
async def test_stream_that_the_reader_left_is_recorded_as_far_as_it_came() -> None:
    async def rollout() -> None:
        async with openai_client(lambda request: streamed(LIBRARIES[-1], events("h"), events("i"))) as client:
            stream = await ask(client, USER, stream=True)
            async for _ in stream:
                break
            await stream.close()

    assert texts(await capture_auto_trajectory(rollout())) == ["one", "[h]"]


@pytest.mark.asyncio
async def test_stream_left_open_is_recorded_at_the_end_of_the_capture() -> None:
    library = LIBRARIES[-1]
    client = async_client(library)

    async def rollout() -> None:
        request = client.build_request("POST", URL, json={"messages": [USER], "stream": True})
        response = await client.send(request, stream=True)
        received = b""
        async for piece in response.aiter_raw():
            received += piece
            if received.count(b"\n\n") >= 2:
                break

    trajectory = await capture_auto_trajectory(rollout())
    await client.aclose()
    assert texts(trajectory) == ["one", "[ON]"]


@every_library
@pytest.mark.asyncio
async def test_stream_that_broke_off_is_not_recorded(library: Any) -> None:
    def break_off(request: Any) -> Any:
        return streamed(library, events("h").removesuffix(b"data: [DONE]\n\n"), library.ReadError("reset"))

    async def rollout() -> None:
        async with (
            async_client(library, break_off) as client,
            client.stream("POST", URL, json={"messages": [USER]}) as r,
        ):
            with pytest.raises(library.ReadError):
                await r.aread()

    assert (await capture_auto_trajectory(rollout())).messages_and_choices == []


@pytest.mark.parametrize(
    "answer",
    [
        {"status_code": 500, "json": completion("error")},
        {"status_code": 200, "text": "not json"},
        {"status_code": 200, "json": {"choices": []}},
        {"status_code": 200, "json": {"choices": [{"text": "old completion"}]}},
        {"status_code": 200, "json": ["list"]},
        {"status_code": 200, "text": "data: {broken\n\n", "headers": {"content-type": "text/event-stream"}},
        {"status_code": 200, "text": ": nothing\n\n", "headers": {"content-type": "text/event-stream"}},
    ],
    ids=str,
)
@pytest.mark.asyncio
async def test_anything_but_a_completion_is_left_out_quietly(
    answer: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    answer = {"status_code": answer["status_code"], **answer}

    async def rollout() -> None:
        async with async_client(httpx, lambda request: httpx.Response(**answer)) as client:
            await client.post(URL, json={"messages": [USER]})

    assert (await capture_auto_trajectory(rollout())).messages_and_choices == []
    assert not [record for record in caplog.records if record.name.startswith("art") and record.levelname != "DEBUG"]


@pytest.mark.asyncio
async def test_requests_without_messages_are_left_out() -> None:
    async def rollout() -> None:
        async with async_client(httpx, lambda request: httpx.Response(200, json=completion("x"))) as client:
            await client.get(URL)
            await client.post(URL, json={"prompt": "text"})
            await client.post(URL, json=["messages"])
            await client.post(URL, json={"messages": "text"})
            await client.post(URL, content=b'not json, though it says "messages"')

    assert (await capture_auto_trajectory(rollout())).messages_and_choices == []


@pytest.mark.asyncio
async def test_finish_reason_that_openai_does_not_know_is_kept() -> None:
    body = completion("x")
    body["choices"][0]["finish_reason"] = "abort"

    async def rollout() -> None:
        async with async_client(httpx, lambda request: httpx.Response(200, json=body)) as client:
            await client.post(URL, json={"messages": [USER]})

    (_, choice) = (await capture_auto_trajectory(rollout())).messages_and_choices
    assert isinstance(choice, Choice)
    assert choice.finish_reason == "abort"  # type: ignore[comparison-overlap]


# Which history ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_turns_continue_one_history_and_branches_begin_others() -> None:
    two, three = {"role": "user", "content": "two"}, {"role": "user", "content": "three"}

    async def rollout() -> None:
        async with openai_client() as client:
            first = (await ask(client, USER)).choices[0].message
            await ask(client, USER, first, two)  # the client sends the answer back as the object it is
            await ask(client, USER, {"role": "assistant", "content": "ONE"}, three)  # another way from the same start
            await ask(
                client,
                USER,
                {"role": "assistant", "content": "ONE"},
                two,
                {"role": "assistant", "content": "TWO"},
                three,
            )

    trajectory = await capture_auto_trajectory(rollout())
    assert texts(trajectory) == ["one", "[ONE]", "two", "[TWO]", "three", "[THREE]"]
    assert [texts(h) for h in trajectory.additional_histories] == [["one", "ONE", "three", "[THREE]"]]


@pytest.mark.asyncio
async def test_same_question_again_begins_another_history() -> None:
    async def rollout() -> None:
        async with openai_client() as client:
            await ask(client, USER)
            await ask(client, USER)

    trajectory = await capture_auto_trajectory(rollout())
    assert [texts(h) for h in histories_of(trajectory)] == [["one", "[ONE]"]] * 2


@pytest.mark.asyncio
async def test_other_tools_begin_another_history_and_none_equals_empty() -> None:
    two = {"role": "user", "content": "two"}
    answered = [USER, {"role": "assistant", "content": "ONE"}]

    async def rollout() -> None:
        async with async_client(httpx) as client:
            await client.post(URL, json={"messages": [USER], "tools": []})
            await client.post(URL, json={"messages": [*answered, two], "tools": [TOOL]})
            await client.post(URL, json={"messages": [*answered, two]})

    trajectory = await capture_auto_trajectory(rollout())
    assert texts(trajectory) == ["one", "[ONE]", "two", "[TWO]"]
    assert trajectory.tools is None
    (other,) = trajectory.additional_histories
    assert texts(other) == ["one", "ONE", "two", "[TWO]"]
    assert other.tools == [TOOL]


@pytest.mark.asyncio
async def test_tool_calls_sent_back_continue_the_history() -> None:
    call = make_tool_call()
    result = {"role": "tool", "tool_call_id": "call-1", "content": "seen"}
    answers = iter([completion(None, tool_calls=[call], reasoning_content="hm"), completion("done")])

    async def rollout() -> None:
        async with openai_client(lambda request: LIBRARIES[-1].Response(200, json=next(answers))) as client:
            answer = (await ask(client, USER, tools=[TOOL])).choices[0].message
            await ask(client, USER, answer, result, tools=[TOOL])

    trajectory = await capture_auto_trajectory(rollout())
    assert trajectory.additional_histories == []
    assert [isinstance(entry, Choice) for entry in trajectory.messages_and_choices] == [False, True, False, True]


@pytest.mark.asyncio
async def test_other_tool_call_begins_another_history() -> None:
    answers = iter([completion(None, tool_calls=[make_tool_call()]), completion("done")])
    other = {"role": "assistant", "content": None, "tool_calls": [make_tool_call("go")]}

    async def rollout() -> None:
        async with openai_client(lambda request: LIBRARIES[-1].Response(200, json=next(answers))) as client:
            await ask(client, USER)
            await ask(client, USER, other)

    assert len((await capture_auto_trajectory(rollout())).additional_histories) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(("arguments", "histories"), [('{"x": 1, "y": "é"}', 0), ('{"x": 2, "y": "é"}', 1)])
async def test_arguments_written_with_other_spaces_are_the_same(arguments: str, histories: int) -> None:
    sampled = make_tool_call(arguments='{"x":1,"y":"\\u00e9"}')
    answers = iter([completion(None, tool_calls=[sampled]), completion("done")])
    sent_back = {"role": "assistant", "content": None, "tool_calls": [make_tool_call(arguments=arguments)]}

    async def rollout() -> None:
        async with openai_client(lambda request: LIBRARIES[-1].Response(200, json=next(answers))) as client:
            await ask(client, USER)
            await ask(client, USER, sent_back)

    assert len((await capture_auto_trajectory(rollout())).additional_histories) == histories


# Isolation ----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_captures_at_once_do_not_mix() -> None:
    all_run = asyncio.Barrier(8)

    async def rollout(client: AsyncOpenAI, number: int) -> None:
        await all_run.wait()
        for turn in range(3):
            message = {"role": "user", "content": f"{number} {turn}"}
            answer = await ask(client, message, stream=turn == 1)
            if turn == 1:
                async for _ in answer:
                    await asyncio.sleep(0)
        captured = auto_trajectory(required=True)
        captured.reward = number

    async with openai_client() as client:
        captured = await asyncio.gather(*(capture_auto_trajectory(rollout(client, n)) for n in range(8)))
    for number, trajectory in enumerate(captured):
        assert trajectory.reward == number
        assert [texts(h) for h in histories_of(trajectory)] == [
            [f"{number} {turn}", f"[{number} {turn}]"] for turn in range(3)
        ]


@pytest.mark.asyncio
async def test_tasks_inside_are_captured_and_those_outside_are_not() -> None:
    inside_may_go, outside_is_done = asyncio.Event(), asyncio.Event()

    async def rollout(client: AsyncOpenAI) -> None:
        inside_may_go.set()
        await outside_is_done.wait()
        await asyncio.create_task(ask(client, USER))

    async with openai_client() as client:
        capture = asyncio.create_task(capture_auto_trajectory(rollout(client)))
        await inside_may_go.wait()
        await ask(client, {"role": "user", "content": "outside"})  # while the capture is active
        outside_is_done.set()
        assert texts(await capture) == ["one", "[ONE]"]


@pytest.mark.asyncio
async def test_inner_capture_takes_what_it_runs() -> None:
    async def outer(client: AsyncOpenAI) -> None:
        await ask(client, USER)
        inner = await capture_auto_trajectory(ask(client, SYSTEM))
        assert texts(inner) == ["be short", "[BE SHORT]"]
        await ask(client, USER, {"role": "assistant", "content": "ONE"}, {"role": "user", "content": "two"})

    async with openai_client() as client:
        assert texts(await capture_auto_trajectory(outer(client))) == ["one", "[ONE]", "two", "[TWO]"]


@pytest.mark.asyncio
async def test_task_that_outlives_the_capture_adds_nothing() -> None:
    late: list[asyncio.Task[Any]] = []
    may_go = asyncio.Event()

    async def ask_later(client: AsyncOpenAI) -> None:
        await may_go.wait()
        await ask(client, USER)

    async def rollout(client: AsyncOpenAI) -> None:
        late.append(asyncio.create_task(ask_later(client)))

    async def wait_for_it() -> None:  # while httpx is observed for somebody else
        await late[0]

    async with openai_client() as client:
        ended = await capture_auto_trajectory(rollout(client))
        may_go.set()
        other = await capture_auto_trajectory(wait_for_it())
    assert (ended.messages_and_choices, other.messages_and_choices) == ([], [])


@pytest.mark.asyncio
async def test_httpx_is_patched_only_while_a_capture_is_active() -> None:
    before = patched_methods()
    during: list[Any] = []

    async def rollout() -> None:
        await capture_auto_trajectory(note())
        during.append(patched_methods())

    async def note() -> None:
        during.append(patched_methods())

    await capture_auto_trajectory(rollout())
    assert len(during) == 2
    assert during[0] == during[1]
    assert all(now is not then for now, then in zip(during[0], before, strict=True))
    assert all(now is then for now, then in zip(patched_methods(), before, strict=True))


@pytest.mark.asyncio
async def test_patch_is_taken_back_when_the_coroutine_fails() -> None:
    before = patched_methods()

    async def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await capture_auto_trajectory(fail())
    assert patched_methods() == before
    assert auto_trajectory() is None


@pytest.mark.asyncio
async def test_patch_of_other_code_on_top_survives_and_nothing_is_recorded_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    original = httpx.AsyncClient.send

    async def rollout() -> None:
        async with async_client(httpx) as client:
            await client.post(URL, json={"messages": [USER]})

    async def patch_and_roll() -> None:
        ours = httpx.AsyncClient.send

        async def traced(self: httpx.AsyncClient, *args: Any, **kwargs: Any) -> httpx.Response:
            calls.append("traced")
            return await ours(self, *args, **kwargs)

        httpx.AsyncClient.send = traced  # type: ignore[method-assign]
        await rollout()

    try:
        for coroutine in (patch_and_roll(), rollout(), rollout()):
            trajectory = await capture_auto_trajectory(coroutine)
            assert texts(trajectory) == ["one", "[ONE]"]
            assert trajectory.additional_histories == []
        assert calls == ["traced"] * 3
    finally:
        httpx.AsyncClient.send = original  # type: ignore[method-assign]
    assert texts(await capture_auto_trajectory(rollout())) == ["one", "[ONE]"]
    assert httpx.AsyncClient.send is original


@pytest.mark.asyncio
async def test_auto_trajectory_outside_a_capture() -> None:
    assert auto_trajectory() is None
    with pytest.raises(RuntimeError, match="capture_auto_trajectory"):
        auto_trajectory(required=True)


# Over a socket, and the bytes of a stream -----------------------------------------------------------------------


@pytest.mark.asyncio
async def test_default_openai_client_is_recorded_over_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")  # a proxy of the machine would catch the request

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for event in events("h", "i").split(b"\n\n"):
            piece = event + b"\n\n"
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def rollout() -> None:
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0) as client:
            parts = [c.choices[0].delta.content async for c in await ask(client, USER, stream=True)]
        assert parts == ["h", "i"]

    async with server:
        assert texts(await capture_auto_trajectory(rollout())) == ["one", "[hi]"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_events_are_parsed_with_every_line_end_and_one_cut_off_is_left_out(line_end: str) -> None:
    text = f": comment\nevent: message\n{events('h', 'ü').decode().removesuffix('data: [DONE]' + 2 * chr(10))}"
    whole = text.replace("\n", line_end).encode()
    assert parse_sse_to_chat_completion(whole).choices[0].message.content == "hü"
    for kept in (len(whole) - 3, len(whole) - 20):
        assert parse_sse_to_chat_completion(whole[:kept]).choices[0].message.content == "h"


def test_event_data_in_several_lines_is_joined() -> None:
    body = json.dumps(json.loads(events("h").decode().split("\n")[0].removeprefix("data: ")), indent=1)
    content = "".join(f"data:{line}\n" for line in body.split("\n")) + "\n"
    assert parse_sse_to_chat_completion(content.encode()).choices[0].message.content == "h"


def test_no_chunk_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no chat completion chunk"):
        parse_sse_to_chat_completion(b"data: [DONE]\n\n")
