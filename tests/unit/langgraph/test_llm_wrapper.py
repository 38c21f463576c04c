"""LangGraph agents against a scripted model behind real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from pydantic import BaseModel

import art
from art.errors import ConfigurationError, MissingDependencyError
from art.langgraph import init_chat_model, wrap_rollout
from art.types import Choice
from tests.contract.fresh import run_fresh
from tests.support.conversations import make_tool_call
from tests.support.fake_backend import FakeBackend
from tests.support.scripted_openai import ScriptedOpenAI, serving, serving_in_thread

pytestmark = [
    pytest.mark.filterwarnings("ignore:create_react_agent has been moved"),
    pytest.mark.asyncio,
]


@tool
def look_up(city: str) -> str:
    """Look up the temperature of a city."""
    return f"{len(city)} degrees in {city}"


@contextlib.asynccontextmanager
async def registered(server: ScriptedOpenAI) -> AsyncIterator[art.TrainableModel[Any, Any]]:
    model = art.TrainableModel(name="agent", project="p", base_model="b")
    backend = FakeBackend(step=3)
    backend.base_url = server.base_url
    await model.register(backend)
    async with model.openai_client():
        yield model


def call(city: str, call_id: str) -> dict[str, Any]:
    # Written as models write it: LangChain sends it back with other spaces.
    return {"content": "", "tool_calls": [make_tool_call("look_up", f'{{"city":"{city}"}}', call_id)]}


def message(text: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


async def react_rollout(model: art.TrainableModel[Any, Any]) -> art.Trajectory:
    agent = create_react_agent(init_chat_model(model.inference_model_name, temperature=0.2), [look_up])
    state = {"messages": [SystemMessage("Be brief."), HumanMessage("Rome and Oslo?")]}
    final = await agent.ainvoke(state)
    return art.Trajectory(messages_and_choices=[], reward=float(len(final["messages"][-1].text)))


async def test_tool_calls_over_several_turns_make_one_conversation() -> None:
    answers = [message(**call("Rome", "c1")), message(**call("Oslo", "c2")), message("4 and 4.")]
    async with serving(ScriptedOpenAI(*answers)) as server, registered(server) as model:
        trajectory = await wrap_rollout(model, react_rollout)(model)
    assert trajectory.reward == 8.0
    assert trajectory.additional_histories == []
    entries = trajectory.messages_and_choices
    assert [isinstance(entry, Choice) for entry in entries] == [False, False, True, False, True, False, True]
    assert [each["content"] for each in trajectory.messages()] == [
        "Be brief.", "Rome and Oslo?", "", "4 degrees in Rome", "", "4 degrees in Oslo", "4 and 4.",
    ]  # fmt: skip
    choice: Any = entries[2]
    assert choice.message.tool_calls[0].function.arguments == '{"city":"Rome"}'
    assert choice.logprobs.content[0].token == "token_id:7"
    assert trajectory.tools is not None
    (offered,) = trajectory.tools
    assert offered["function"]["name"] == "look_up"
    assert [(request["model"], request["temperature"]) for request in server.chats] == [("agent@3", 1.0)] * 3


async def test_each_call_asks_for_the_newest_step_of_its_moment() -> None:
    async with serving(ScriptedOpenAI("a")) as server, registered(server) as model:

        async def rollout() -> art.Trajectory:
            llm = init_chat_model()
            await llm.ainvoke("one")
            await model.backend().train(model, [])
            await llm.ainvoke("two")
            return art.Trajectory(messages_and_choices=[])

        trajectory = await wrap_rollout(model, rollout)()
    assert [request["model"] for request in server.chats] == ["agent@3", "agent@4"]
    assert [h.messages()[0]["content"] for h in trajectory.additional_histories] == ["two"]


async def test_streams_and_structured_output_are_recorded() -> None:
    class Verdict(BaseModel):
        good: bool

    async with serving(ScriptedOpenAI("hello", json.dumps({"good": True}))) as server, registered(server) as model:

        async def rollout() -> art.Trajectory:
            llm = init_chat_model(max_tokens=5)
            text = "".join([chunk.text async for chunk in llm.astream("hi")])
            verdict = await llm.with_structured_output(Verdict).ainvoke("good?")
            return art.Trajectory(metadata={"text": text, "good": verdict.good})

        trajectory = await wrap_rollout(model, rollout)()
    assert trajectory.metadata == {"text": "hello", "good": True}
    assert [each["content"] for each in trajectory.messages()] == ["hi", "hello"]
    assert trajectory.additional_histories[0].messages()[1]["content"] == '{"good": true}'
    assert server.chats[0]["max_completion_tokens"] == 5


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


async def test_graph_of_blocking_nodes_made_once_for_all_rollouts() -> None:
    llm = init_chat_model("openai:gpt-4o", model_provider="openai").bind_tools([look_up])
    graph = StateGraph(State)
    graph.add_node("ask", lambda state: {"messages": [llm.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([look_up]))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition, {"tools": "tools", END: END})
    graph.add_edge("tools", "ask")
    agent = graph.compile()

    def answer(request: dict[str, Any]) -> Any:
        question = request["messages"][0]["content"]
        return message(**call(question, "c")) if len(request["messages"]) == 1 else message(f"done {question}")

    async def rollout(city: str) -> art.Trajectory:
        await agent.ainvoke({"messages": [HumanMessage(city)]})
        return art.Trajectory()

    with serving_in_thread(ScriptedOpenAI(answer_to=answer)) as server:
        async with registered(server) as model:
            trajectories = await asyncio.gather(*(wrap_rollout(model, rollout)(f"city-{n}") for n in range(8)))
    for number, trajectory in enumerate(trajectories):
        assert trajectory.additional_histories == []
        assert [each["content"] for each in trajectory.messages()] == [
            f"city-{number}", "", f"6 degrees in city-{number}", f"done city-{number}",
        ]  # fmt: skip
    assert {request["model"] for request in server.chats} == {"agent@3"}


async def test_calls_of_other_clients_stay_out() -> None:
    async with serving(ScriptedOpenAI("a")) as server, registered(server) as model:

        async def rollout() -> art.Trajectory:
            await init_chat_model().ainvoke("agent")
            messages: Any = [{"role": "user", "content": "judge"}]
            await model.openai_client().chat.completions.create(model="judge", messages=messages)
            return art.Trajectory(reward=1.0)

        trajectory = await wrap_rollout(model, rollout)()
    assert len(server.chats) == 2
    assert [each["content"] for each in trajectory.messages()] == ["agent", "a"]
    assert trajectory.additional_histories == []


async def test_failed_and_repeated_requests_leave_no_trace() -> None:
    async with serving(ScriptedOpenAI(503, message("at last"))) as server, registered(server) as model:

        async def rollout() -> art.Trajectory:
            await init_chat_model(max_retries=1).ainvoke("q")
            return art.Trajectory()

        trajectory = await wrap_rollout(model, rollout)()
    assert [each["content"] for each in trajectory.messages()] == ["q", "at last"]
    assert len(server.chats) == 2


async def test_time_out_of_the_chat_model_counts() -> None:
    async with serving(ScriptedOpenAI(None)) as server, registered(server) as model:

        async def rollout() -> art.Trajectory:
            await init_chat_model(timeout=0.2, max_retries=0).ainvoke("q")
            return art.Trajectory()

        with pytest.raises(Exception, match="timed out"):
            await wrap_rollout(model, rollout)()


async def test_rollout_works_in_a_gather_and_keeps_its_name() -> None:
    async with serving(ScriptedOpenAI(message("x"))) as server, registered(server) as model:
        rollout: Any = wrap_rollout(model, react_rollout)
        assert rollout.__name__ == "react_rollout"
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(model) for _ in range(4)) for _ in range(2)], pbar_desc=None
        )
    assert [[len(t.messages_and_choices) for t in group] for group in groups] == [[3] * 4] * 2
    assert groups[0].trajectories[0].metrics["completion_tokens"] == 1.0


async def test_unused_model_is_reported_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = art.TrainableModel(name="agent", project="p", base_model="b")

    async def rollout() -> art.Trajectory:
        return art.Trajectory(messages_and_choices=[{"role": "user", "content": "own"}])

    with caplog.at_level(logging.WARNING):
        trajectory = await wrap_rollout(model, rollout)()
    assert trajectory.messages()[0]["content"] == "own"
    assert "nothing was recorded" in caplog.text


async def test_mistakes_are_named() -> None:
    model = art.TrainableModel(name="agent", project="p", base_model="b")

    async def rollout() -> Any:
        return "answer"

    with pytest.raises(TypeError, match="must return a Trajectory, got a str"):
        await wrap_rollout(model, rollout)()
    with pytest.raises(ConfigurationError, match="wrap_rollout"):
        await init_chat_model().ainvoke("q")


async def test_chat_model_made_in_a_rollout_asks_for_its_model_in_a_thread_without_context() -> None:
    with serving_in_thread(ScriptedOpenAI(message("x"))) as server:
        async with registered(server) as model:

            async def rollout() -> art.Trajectory:
                llm = init_chat_model()
                answer = await asyncio.get_running_loop().run_in_executor(None, llm.invoke, "q")
                return art.Trajectory(metadata={"answer": answer.text})

            trajectory = await wrap_rollout(model, rollout)()
    assert trajectory.metadata == {"answer": "x"}


async def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "art.langgraph.chat_model", raising=False)
    monkeypatch.setitem(sys.modules, "langchain_openai", None)
    with pytest.raises(MissingDependencyError, match=r"langchain_openai.*openpipe-art\[langgraph\]"):
        init_chat_model()


async def test_importing_the_package_loads_no_langchain(tmp_path: Path) -> None:
    script = "import art.langgraph, json, sys; print(json.dumps(sorted(n for n in sys.modules if 'langchain' in n)))"
    assert run_fresh(script, cwd=tmp_path) == []
