from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import BaseModel

from art.errors import DataError
from art.mcp import GeneratedScenario, GeneratedScenarioCollection, MCPResource, MCPTool, complete_task_tool

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


def make(*difficulties: int) -> GeneratedScenarioCollection:
    return GeneratedScenarioCollection([GeneratedScenario(f"task {n}", d) for n, d in enumerate(difficulties)])


def test_tool_reads_its_own_dict_and_that_of_a_server() -> None:
    tool = MCPTool("find", "Finds.", SCHEMA)
    assert MCPTool.from_dict(tool.to_dict()) == tool
    assert MCPTool.from_dict({"name": "find", "description": "Finds.", "inputSchema": SCHEMA}) == tool
    assert MCPTool.from_dict({"name": "f"}).parameters == {"type": "object", "properties": {}}
    assert tool.to_tool_schema() == {
        "type": "function",
        "function": {"name": "find", "description": "Finds.", "parameters": SCHEMA},
    }


def test_resource_reads_its_own_dict_and_that_of_a_server() -> None:
    resource = MCPResource("file:///a", "a", "The a.", "text/plain")
    assert MCPResource.from_dict(resource.to_dict()) == resource
    assert MCPResource.from_dict(
        {"uri": "file:///a", "name": "a", "description": "The a.", "mimeType": "text/plain"}
    ) == (resource)
    assert MCPResource("u", "n", "d").mime_type is None


@pytest.mark.parametrize(("task", "difficulty"), [("t", 0), ("t", 6), ("t", "3"), (" ", 3)])
def test_scenario_out_of_range_is_a_value_error(task: str, difficulty: Any) -> None:
    with pytest.raises(ValueError, match="scenario"):
        GeneratedScenario(task, difficulty)


def test_preview_cuts_long_tasks() -> None:
    assert GeneratedScenario("short", 1).preview(5) == "short"
    assert GeneratedScenario("a longer task", 1).preview(8) == "a longer…"


def test_collection_goes_to_json_and_back() -> None:
    scenarios = make(1, 5)
    assert GeneratedScenarioCollection.from_json(scenarios.to_json(indent=2)).to_dicts() == scenarios.to_dicts()
    wrapped = f'{{"scenarios": {scenarios.to_json()}}}'
    assert GeneratedScenarioCollection.from_json(wrapped).to_dicts() == scenarios.to_dicts()


@pytest.mark.parametrize("text", ["{broken", "3", '{"other": []}', '[{"task": "t"}]', "[1]"])
def test_other_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="scenario"):
        GeneratedScenarioCollection.from_json(text)


def test_collection_is_selected_from_without_being_changed() -> None:
    scenarios = make(1, 2, 3, 3, 5)
    train, rest = scenarios.split(2)
    assert ([s.difficulty for s in train], [s.difficulty for s in rest]) == ([1, 2], [3, 3, 5])
    assert [s.difficulty for s in scenarios.filter_by_difficulty(2, 3)] == [2, 3, 3]
    assert scenarios[-1].difficulty == 5
    assert [s.difficulty for s in scenarios[1:3]] == [2, 3]
    assert scenarios.get_difficulty_distribution() == {1: 1, 2: 1, 3: 2, 5: 1}
    assert scenarios.get_summary() == {
        "total_scenarios": 5,
        "difficulty_distribution": {1: 1, 2: 1, 3: 2, 5: 1},
        "avg_difficulty": 2.8,
        "avg_task_length": 6.0,
    }
    assert make().get_summary()["avg_difficulty"] == 0.0
    assert len(scenarios) == 5
    with pytest.raises(ValueError, match="6 of 5"):
        scenarios.split(6)


def test_shuffling_keeps_all_and_leaves_the_global_generator_alone() -> None:
    scenarios = make(*([1] * 50))
    before = random.getstate()
    shuffled = scenarios.shuffle()
    assert random.getstate() == before
    assert sorted(s.task for s in shuffled) == sorted(s.task for s in scenarios)
    assert [s.task for s in shuffled] != [s.task for s in scenarios] == [f"task {n}" for n in range(50)]


def test_what_is_shown_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    scenarios = make(1, 4, 4)
    scenarios.preview(2)
    assert capsys.readouterr().out == "1. [1/5] task 0\n2. [4/5] task 1\n"
    scenarios.print_difficulty_distribution()
    assert "difficulty 4/5:    2 (67%)" in capsys.readouterr().out


def test_agents_can_end_their_task() -> None:
    schema = complete_task_tool.to_tool_schema()
    assert schema["function"]["name"] == "complete_task"
    assert "summary" in schema["function"]["parameters"]["required"]


def test_tools_and_resources_as_clients_and_servers_give_them() -> None:
    class Tool(BaseModel):
        name: str = "find"
        description: str | None = None
        inputSchema: dict[str, Any] = {"type": "object"}

    class Resource(BaseModel):
        uri: str = "file:///x"
        mimeType: str | None = "text/plain"

    tool, resource = Tool(), Resource()
    assert MCPTool.from_dict(tool) == MCPTool("find", "", {"type": "object"})  # type: ignore[arg-type]
    assert MCPTool.from_dict(MCPTool("find", "", {"type": "object"}).to_tool_schema()) == MCPTool.from_dict(tool)  # type: ignore[arg-type]
    assert MCPResource.from_dict(resource) == MCPResource("file:///x", "file:///x", "", "text/plain")  # type: ignore[arg-type]


@pytest.mark.parametrize("item", ["find", None, {"title": "find"}, {"function": "find"}])
def test_what_is_no_tool_is_named(item: Any) -> None:
    with pytest.raises(DataError, match="expected a tool of an MCP server"):
        MCPTool.from_dict(item)
    with pytest.raises(DataError, match="expected a resource of an MCP server, a dict with a uri"):
        MCPResource.from_dict(item)
