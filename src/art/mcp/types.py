"""What an MCP server offers, and the tasks made up for it. Data only."""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, overload

from pydantic import BaseModel

from art.errors import DataError

EASIEST, HARDEST = 1, 5


@dataclass
class MCPTool:
    """A tool of an MCP server.

    Attributes:
        name: What it is called by.
        description: What it does.
        parameters: JSON schema of its arguments.
    """

    name: str
    description: str
    parameters: dict[str, Any]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MCPTool:
        """Read what `to_dict` gave, or a tool as MCP servers list it (with `inputSchema`) or OpenAI's client takes it.

        Raises:
            DataError: It is none of these.
        """
        given = _fields("tool", data)
        tool = _fields("tool", given.get("function", given), needed="name")
        parameters = tool.get("parameters", tool.get("inputSchema"))
        return cls(tool["name"], tool.get("description") or "", parameters or {"type": "object", "properties": {}})

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as a dict."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def to_tool_schema(self) -> dict[str, Any]:
        """Give the tool in OpenAI's form, as requests and trajectories take it."""
        return {"type": "function", "function": self.to_dict()}


@dataclass
class MCPResource:
    """Something that an MCP server lets its clients read.

    Attributes:
        uri: Where it is.
        name: What it is called.
        description: What is in it.
        mime_type: Its form, if that is known.
    """

    uri: str
    name: str
    description: str
    mime_type: str | None = None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MCPResource:
        """Read what `to_dict` gave, or a resource as MCP servers list it (with `mimeType`).

        Raises:
            DataError: It is neither.
        """
        given = _fields("resource", data, needed="uri")
        uri = str(given["uri"])
        mime_type = given.get("mime_type", given.get("mimeType"))
        return cls(uri, given.get("name") or uri, given.get("description") or "", mime_type)

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as a dict."""
        return {"uri": self.uri, "name": self.name, "description": self.description, "mime_type": self.mime_type}


@dataclass
class GeneratedScenario:
    """A task for an agent.

    Attributes:
        task: What it is asked to do.
        difficulty: From 1, easy, to 5, hard.

    Raises:
        DataError: The task is empty or the difficulty out of range; a `ValueError` too.
    """

    task: str
    difficulty: int

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task.strip():
            raise DataError(f"a scenario needs a task in words, got {self.task!r}")
        if not isinstance(self.difficulty, int) or not EASIEST <= self.difficulty <= HARDEST:
            raise DataError(
                f"a scenario's difficulty is a number from {EASIEST} to {HARDEST}, got {self.difficulty!r}: {self.task}"
            )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GeneratedScenario:
        """Read what `to_dict` gave.

        Raises:
            DataError: A field is missing or wrong.
        """
        if not isinstance(data, dict) or not {"task", "difficulty"} <= set(data):
            raise DataError(f"a scenario has `task` and `difficulty`, got {data!r}")
        return cls(data["task"], data["difficulty"])

    def to_dict(self) -> dict[str, Any]:
        """Give the fields as a dict."""
        return {"task": self.task, "difficulty": self.difficulty}

    def preview(self, max_length: int = 120) -> str:
        """Give the beginning of the task."""
        return self.task if len(self.task) <= max_length else f"{self.task[:max_length].rstrip()}…"


class GeneratedScenarioCollection:
    """Scenarios in an order. Methods that select give a new collection."""

    def __init__(self, scenarios: list[GeneratedScenario]) -> None:
        self.scenarios = scenarios

    def __len__(self) -> int:
        return len(self.scenarios)

    def __iter__(self) -> Iterator[GeneratedScenario]:
        return iter(self.scenarios)

    @overload
    def __getitem__(self, index: int) -> GeneratedScenario: ...

    @overload
    def __getitem__(self, index: slice) -> list[GeneratedScenario]: ...

    def __getitem__(self, index: int | slice) -> GeneratedScenario | list[GeneratedScenario]:
        return self.scenarios[index]

    @classmethod
    def from_dicts(cls, data: list[dict[str, Any]]) -> GeneratedScenarioCollection:
        """Read what `to_dicts` gave.

        Raises:
            DataError: One of them is not a scenario.
        """
        return cls([GeneratedScenario.from_dict(each) for each in data])

    @classmethod
    def from_json(cls, json_str: str) -> GeneratedScenarioCollection:
        """Read what `to_json` gave, or an object with such a list under `scenarios`.

        Raises:
            DataError: It is something else.
        """
        try:
            data = json.loads(json_str)
        except ValueError as err:
            raise DataError(f"scenarios are not JSON: {err}") from err
        if isinstance(data, dict):
            data = data.get("scenarios")
        if not isinstance(data, list):
            raise DataError("expected a list of scenarios, or an object with one under `scenarios`")
        return cls.from_dicts(data)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Give the scenarios as dicts."""
        return [scenario.to_dict() for scenario in self.scenarios]

    def to_json(self, indent: int | None = None) -> str:
        """Give the scenarios as JSON text."""
        return json.dumps(self.to_dicts(), indent=indent)

    def shuffle(self) -> GeneratedScenarioCollection:
        """Give the scenarios in a random order; Python's global generator is left alone."""
        return GeneratedScenarioCollection(random.Random().sample(self.scenarios, len(self.scenarios)))

    def split(self, train_size: int) -> tuple[GeneratedScenarioCollection, GeneratedScenarioCollection]:
        """Give the first `train_size` scenarios, and the others.

        Raises:
            DataError: There are fewer.
        """
        if not 0 <= train_size <= len(self.scenarios):
            raise DataError(f"cannot take {train_size} of {len(self.scenarios)} scenarios for training")
        first, others = self.scenarios[:train_size], self.scenarios[train_size:]
        return GeneratedScenarioCollection(first), GeneratedScenarioCollection(others)

    def filter_by_difficulty(self, min_difficulty: int = 1, max_difficulty: int = 5) -> GeneratedScenarioCollection:
        """Give the scenarios whose difficulty is in this range, both ends included."""
        return GeneratedScenarioCollection(
            [scenario for scenario in self.scenarios if min_difficulty <= scenario.difficulty <= max_difficulty]
        )

    def get_difficulty_distribution(self) -> Counter[int]:
        """Count the scenarios of each difficulty."""
        return Counter(scenario.difficulty for scenario in self.scenarios)

    def get_summary(self) -> dict[str, Any]:
        """Give the number of scenarios, of each difficulty, and the means of difficulty and task length."""
        return {
            "total_scenarios": len(self.scenarios),
            "difficulty_distribution": dict(sorted(self.get_difficulty_distribution().items())),
            "avg_difficulty": statistics.fmean(s.difficulty for s in self.scenarios) if self.scenarios else 0.0,
            "avg_task_length": statistics.fmean(len(s.task) for s in self.scenarios) if self.scenarios else 0.0,
        }

    def preview(self, n: int = 5, max_task_length: int = 120) -> None:
        """Show the beginnings of the first n tasks on standard output."""
        for number, scenario in enumerate(self.scenarios[:n], start=1):
            sys.stdout.write(f"{number}. [{scenario.difficulty}/{HARDEST}] {scenario.preview(max_task_length)}\n")

    def print_difficulty_distribution(self) -> None:
        """Show the number of scenarios of each difficulty on standard output."""
        distribution = self.get_difficulty_distribution()
        for difficulty in range(EASIEST, HARDEST + 1):
            count = distribution[difficulty]
            share = count / len(self.scenarios) if self.scenarios else 0.0
            sys.stdout.write(f"difficulty {difficulty}/{HARDEST}: {count:4d} ({share:.0%})\n")


def _fields(what: str, item: Any, *, needed: str | None = None) -> Mapping[str, Any]:
    """Give the fields of a dict, or of an object of an MCP client's."""
    fields = item.model_dump() if isinstance(item, BaseModel) else item
    if not isinstance(fields, Mapping) or (needed is not None and needed not in fields):
        raise DataError(f"expected a {what} of an MCP server, a dict with a {needed or 'name'}, got {item!r}")
    return fields
