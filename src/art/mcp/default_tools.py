"""Tools that an agent has beside those of its MCP server."""

from __future__ import annotations

from art.mcp.types import MCPTool

complete_task_tool = MCPTool(
    name="complete_task",
    description="Say that the task is done, or that it cannot be done. Nothing can be called after this.",
    parameters={
        "type": "object",
        "properties": {
            "summary": {"type": "string", "description": "What was done, and what came of it."},
            "success": {"type": "boolean", "description": "Whether the task was fulfilled."},
        },
        "required": ["summary", "success"],
    },
)
"""The tool with which an agent ends its rollout; `complete_task_tool.to_tool_schema()` goes into the request."""
