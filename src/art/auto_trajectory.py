"""Build a trajectory out of the chat completions that a coroutine asks for: `capture_auto_trajectory`.

Every completion requested through httpx inside the coroutine is recorded, whichever client asks. The process's httpx
is touched only while a capture is active (`art.http_capture`).
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import logging
import re
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Literal, TypeAlias, overload

import httpx
from openai.types.chat.chat_completion import ChatCompletion
from openai.types.chat.chat_completion_chunk import ChatCompletionChunk

from art.http_capture import ResponseObserver
from art.openai import init_chat_completion, update_chat_completion
from art.trajectories import History, Trajectory, get_messages
from art.types import Choice

logger = logging.getLogger(__name__)

_Json: TypeAlias = dict[str, Any]


async def capture_auto_trajectory(coroutine: Coroutine[Any, Any, Any]) -> Trajectory:
    """Run a coroutine and give the finished trajectory of its chat completions.

    Of each response the first Choice is taken. It continues the first history whose messages begin the request's and
    whose tools are the same; otherwise it begins an additional history. Captures that run at once do not mix.
    """
    with AutoTrajectoryContext() as trajectory:
        await coroutine
    return trajectory.finish()


@overload
def auto_trajectory(*, required: Literal[True]) -> Trajectory: ...


@overload
def auto_trajectory(*, required: Literal[False] = False) -> Trajectory | None: ...


def auto_trajectory(*, required: bool = False) -> Trajectory | None:
    """Give the trajectory that is being captured, for setting its reward or metrics; None outside a capture.

    Raises:
        RuntimeError: Outside a capture, when it is required.
    """
    context = auto_trajectory_context_var.get(None)
    if context is not None:
        return context.trajectory
    if required:
        raise RuntimeError("no trajectory is being captured; run this code in art.capture_auto_trajectory(…)")
    return None


class AutoTrajectoryContext:
    """Records the chat completions of the block, and of tasks started in it, into one trajectory."""

    def __init__(self) -> None:
        self.trajectory = Trajectory()
        self._observer = ResponseObserver(_may_ask_for_chat, self.handle_httpx_response)
        self._token: contextvars.Token[AutoTrajectoryContext] | None = None

    def __enter__(self) -> Trajectory:
        self._observer.__enter__()
        self._token = auto_trajectory_context_var.set(self)
        return self.trajectory

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if self._token is not None:
            auto_trajectory_context_var.reset(self._token)
            self._token = None
        self._observer.__exit__(exc_type, exc_value, traceback)

    def handle_httpx_response(self, response: httpx.Response) -> None:
        """Record a response that has been read; anything but a chat completion is left out."""
        if response.is_error:
            return
        request = json.loads(response.request.content)
        if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
            return
        choice = _first_choice(response)
        if choice is not None:
            self._record(request["messages"], request.get("tools") or None, choice)

    def _record(self, messages: list[_Json], tools: list[Any] | None, choice: Choice) -> None:
        histories: list[Trajectory | History] = [self.trajectory, *self.trajectory.additional_histories]
        history = next((each for each in histories if _is_continued(each, messages, tools)), None)
        if history is None:
            history = History(messages_and_choices=[])
            self.trajectory.additional_histories.append(history)
        known = len(history.messages_and_choices)
        if known == 0:
            history.tools = tools
        new: list[Any] = messages[known:]
        history.messages_and_choices.extend([*new, choice])


auto_trajectory_context_var: contextvars.ContextVar[AutoTrajectoryContext] = contextvars.ContextVar(
    "auto_trajectory_context"
)


def parse_sse_to_chat_completion(content: bytes) -> ChatCompletion:
    """Put a streamed response together from the bytes of its server-sent events; one cut off at the end is left out.

    Raises:
        ValueError: There is no chunk in it, or one that is not JSON.
    """
    completion: ChatCompletion | None = None
    for data in _sse_data(content):
        if data == "[DONE]":
            break
        chunk = ChatCompletionChunk.construct(**json.loads(data))
        if completion is None:
            completion = init_chat_completion(chunk)
        update_chat_completion(completion, chunk)
    if completion is None:
        raise ValueError("no chat completion chunk among the events")
    return completion


def _may_ask_for_chat(request: httpx.Request) -> bool:
    return b'"messages"' in request.content


def _first_choice(response: httpx.Response) -> Choice | None:
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        return next(iter(parse_sse_to_chat_completion(response.content).choices), None)
    body = response.json()
    choices = body.get("choices") if isinstance(body, dict) else None
    if not choices or not isinstance(choices[0].get("message"), dict):
        return None
    return Choice.construct(**choices[0])  # as OpenAI's client does it: servers add fields and finish reasons


def _sse_data(content: bytes) -> Iterator[str]:
    """Give the data of each event that a blank line ends; its lines joined, as the standard asks."""
    lines: list[str] = []
    *ended_lines, _ = re.split("\r\n|\r|\n", content.decode(errors="replace"))
    for line in ended_lines:
        if line.startswith("data:"):
            lines.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines = []


def _is_continued(history: Trajectory | History, messages: list[_Json], tools: list[Any] | None) -> bool:
    if not history.messages_and_choices:
        return True
    known = [_essence(message) for message in get_messages(history.messages_and_choices)]
    return (history.tools or None) == tools and known == [_essence(message) for message in messages[: len(known)]]


def _essence(message: Mapping[str, Any]) -> _Json:
    """What makes two messages the same: clients send answers back with more or fewer empty and optional fields."""
    given = {name: value for name, value in message.items() if value is not None}
    given.setdefault("content", "")
    if given.get("role") != "assistant":
        return given
    calls = [(call.get("id"), _essence_of_call(call)) for call in given.get("tool_calls") or []]
    return {"role": "assistant", "content": given["content"], "tool_calls": calls}


def _essence_of_call(call: Mapping[str, Any]) -> Any:
    function = call.get("function")
    if not function:
        return call.get("custom")
    arguments = function.get("arguments")
    with contextlib.suppress(TypeError, ValueError):
        # LangChain, for one, writes the arguments anew, with other spaces than the model's.
        arguments = json.loads(arguments)
    return function.get("name"), arguments
