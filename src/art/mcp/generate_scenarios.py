"""Have a language model make up tasks that an agent can do with given tools."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from art.env import OPENROUTER_API_KEY
from art.errors import ConfigurationError, DataError
from art.mcp.types import EASIEST, HARDEST, GeneratedScenarioCollection, MCPResource, MCPTool
from art.model.openai_client import build_openai_client

logger = logging.getLogger(__name__)

_TASK = f"""\
You write training tasks for an AI agent. The agent works alone: it has the tools listed below, can read the resources
listed below, and has nothing else, no web browser and nobody to ask.

Rules for the tasks:
- Each can be done with these tools and resources only, and ends with an answer or a report that can be checked.
- Each stands for itself: every name, number and date that the agent needs is in its text. No placeholders.
- They differ from each other: in the tools they need, in subject, in the form of the result. Use real, specific detail.
- They are worded as people ask for things, and never name a tool.
- They range from {EASIEST} (one call of one tool) to {HARDEST} (many calls that build on each other, then a conclusion
  drawn from all of them). Spread the difficulties evenly.
"""


async def generate_scenarios(
    tools: list[MCPTool] | list[dict[str, Any]],
    resources: list[MCPResource] | list[dict[str, Any]] = [],  # noqa: B006  # never changed
    num_scenarios: int = 24,
    show_preview: bool = True,
    custom_instructions: str | None = None,
    generator_model: str = "openai/gpt-4.1-mini",
    generator_api_key: str | None = None,
    generator_base_url: str = "https://openrouter.ai/api/v1",
) -> GeneratedScenarioCollection:
    """Ask a model for tasks that can be done with the tools and resources of an MCP server.

    Args:
        tools: The server's tools.
        resources: What the server lets its clients read.
        num_scenarios: How many tasks; a model that gives fewer is reported in the log.
        show_preview: Show the first tasks on standard output.
        custom_instructions: Further wishes.
        generator_model: The model that makes them up.
        generator_api_key: Its API's key; None: that in the environment variable `OPENROUTER_API_KEY`.
        generator_base_url: Its API's address; any that speaks OpenAI's protocol.

    Raises:
        ConfigurationError: There is no key, or a number is wrong.
        DataError: The answer holds no usable scenarios. Both are `ValueError`s; errors of the call are OpenAI's.
    """
    api_key = generator_api_key or OPENROUTER_API_KEY.read()
    if api_key is None:
        raise ConfigurationError(
            f"no key for {generator_base_url}: pass generator_api_key, or set {OPENROUTER_API_KEY.name}"
        )
    if num_scenarios < 1:
        raise ConfigurationError(f"num_scenarios must be at least 1, got {num_scenarios}")
    offered_tools = [tool if isinstance(tool, MCPTool) else MCPTool.from_dict(tool) for tool in tools]
    readable = [each if isinstance(each, MCPResource) else MCPResource.from_dict(each) for each in resources]
    messages: Any = [
        {"role": "system", "content": _TASK},
        {"role": "user", "content": _request(offered_tools, readable, num_scenarios, custom_instructions)},
    ]
    response_format: Any = _response_format()
    async with build_openai_client(generator_base_url, api_key, None) as client:
        completion = await client.chat.completions.create(
            model=generator_model, messages=messages, response_format=response_format
        )
    text = completion.choices[0].message.content if completion.choices else None
    if not text:
        raise DataError(f"{generator_model} gave no scenarios: its answer is empty")
    scenarios = GeneratedScenarioCollection.from_json(text)
    if not len(scenarios):
        raise DataError(f"{generator_model} gave no scenarios")
    if len(scenarios) < num_scenarios:
        logger.warning("%s gave %d scenarios of the %d asked for", generator_model, len(scenarios), num_scenarios)
    scenarios = GeneratedScenarioCollection(scenarios[:num_scenarios])
    if show_preview:
        scenarios.preview()
    return scenarios


def preview_scenarios(scenarios: list[dict[str, Any]], n: int = 5) -> None:
    """Show the beginnings of the first n tasks on standard output."""
    GeneratedScenarioCollection.from_dicts(scenarios[:n]).preview(n)


def _request(
    tools: Sequence[MCPTool], resources: Sequence[MCPResource], num_scenarios: int, custom_instructions: str | None
) -> str:
    parts = [f"Tools:\n{_as_json(tools)}"]
    if resources:
        parts.append(f"Resources:\n{_as_json(resources)}")
    if custom_instructions:
        parts.append(f"Further instructions:\n{custom_instructions}")
    parts.append(f"Write exactly {num_scenarios} tasks.")
    return "\n\n".join(parts)


def _as_json(items: Sequence[MCPTool] | Sequence[MCPResource]) -> str:
    return json.dumps([item.to_dict() for item in items], indent=1, ensure_ascii=False)


def _response_format() -> dict[str, Any]:
    scenario = {
        "type": "object",
        "properties": {
            "task": {"type": "string", "description": "What the agent is asked to do."},
            "difficulty": {"type": "integer", "description": f"From {EASIEST} to {HARDEST}."},
        },
        "required": ["task", "difficulty"],
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "properties": {"scenarios": {"type": "array", "items": scenario}},
        "required": ["scenarios"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "scenarios", "strict": True, "schema": schema}}
