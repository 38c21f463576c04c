"""Scenarios from a scripted generator behind real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import openai
import pytest

from art.errors import ConfigurationError, DataError
from art.mcp import GeneratedScenarioCollection, MCPResource, MCPTool, generate_scenarios
from art.mcp.generate_scenarios import preview_scenarios
from tests.support.scripted_openai import ScriptedOpenAI, serving

TOOLS = [MCPTool("find", "Finds papers.", {"type": "object"}), MCPTool("open", "Opens one.", {"type": "object"})]


def answer(count: int) -> str:
    return json.dumps({"scenarios": [{"task": f"task {n}", "difficulty": n % 5 + 1} for n in range(count)]})


async def generate(server: ScriptedOpenAI, **more: Any) -> GeneratedScenarioCollection:
    given: dict[str, Any] = {"tools": TOOLS, "num_scenarios": 3, "show_preview": False, "generator_api_key": "sk-gen"}
    return await generate_scenarios(**{**given, "generator_base_url": server.base_url, **more})


@pytest.mark.asyncio
async def test_generator_is_told_of_tools_resources_and_wishes() -> None:
    resource = MCPResource("file:///papers", "papers", "All papers.")
    async with serving(ScriptedOpenAI(answer(3))) as server:
        scenarios = await generate(
            server, resources=[resource], custom_instructions="Only physics.", generator_model="maker"
        )
        from_dicts = await generate(server, tools=[tool.to_dict() for tool in TOOLS], resources=[resource.to_dict()])
    assert [(s.task, s.difficulty) for s in scenarios] == [("task 0", 1), ("task 1", 2), ("task 2", 3)]
    assert from_dicts.to_dicts() == scenarios.to_dicts()
    first, second = server.chats
    wish = first["messages"][1]["content"]
    assert first["model"] == "maker"
    assert second["model"] == "openai/gpt-4.1-mini"
    for part in ("Finds papers.", "file:///papers", "Only physics.", "exactly 3"):
        assert part in wish
    assert "Only physics." not in second["messages"][1]["content"]
    assert first["response_format"]["json_schema"]["strict"] is True


@pytest.mark.asyncio
async def test_more_than_asked_for_is_cut_and_fewer_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedOpenAI(answer(5), answer(2))) as server:
        assert len(await generate(server)) == 3
        assert caplog.text == ""
        with caplog.at_level(logging.WARNING):
            assert len(await generate(server)) == 2
    assert "2 scenarios of the 3" in caplog.text
    assert "sk-gen" not in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["no JSON", answer(0), "", '{"scenarios": [{"task": "t", "difficulty": 9}]}'])
async def test_answer_without_usable_scenarios_is_a_value_error(text: str) -> None:
    async with serving(ScriptedOpenAI(text)) as server:
        with pytest.raises(DataError, match="scenario"):
            await generate(server)


@pytest.mark.asyncio
async def test_refusal_of_the_api_reaches_the_caller() -> None:
    async with serving(ScriptedOpenAI(400)) as server:
        with pytest.raises(openai.BadRequestError):
            await generate(server)


@pytest.mark.asyncio
async def test_event_loop_goes_on_while_the_generator_thinks() -> None:
    async with serving(ScriptedOpenAI(None)) as server:
        task = asyncio.create_task(generate(server))
        while not server.chats:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.asyncio
async def test_key_is_needed_and_found_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="OPENROUTER_API_KEY"):
        await generate_scenarios(TOOLS)
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-env")
    async with serving(ScriptedOpenAI(answer(3))) as server:
        assert len(await generate(server, generator_api_key=None)) == 3
    with pytest.raises(ValueError, match="num_scenarios"):
        await generate_scenarios(TOOLS, num_scenarios=0)


@pytest.mark.asyncio
async def test_preview_is_shown_when_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(ScriptedOpenAI(answer(3))) as server:
        await generate(server)
        assert capsys.readouterr().out == ""
        scenarios = await generate(server, show_preview=True)
    assert "2. [2/5] task 1" in capsys.readouterr().out
    preview_scenarios(scenarios.to_dicts(), n=1)
    assert capsys.readouterr().out == "1. [1/5] task 0\n"
