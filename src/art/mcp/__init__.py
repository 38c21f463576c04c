"""Train agents on the tools of MCP servers: describe the tools, and have tasks for them made up."""

from art.mcp.default_tools import complete_task_tool
from art.mcp.generate_scenarios import generate_scenarios
from art.mcp.types import GeneratedScenario, GeneratedScenarioCollection, MCPResource, MCPTool

__all__ = [
    "GeneratedScenario",
    "GeneratedScenarioCollection",
    "MCPResource",
    "MCPTool",
    "complete_task_tool",
    "generate_scenarios",
]
