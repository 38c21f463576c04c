"""An agent on the tools of an MCP server, trained on tasks that a model made up. `mcp_agent.py URL`."""

import asyncio
import json
import sys
from pathlib import Path

import art
from art.mcp import MCPResource, MCPTool, complete_task_tool, generate_scenarios

URL = sys.argv[1]
model = art.Model(
    name="prompted",
    project="scripts",
    inference_api_key="key",
    inference_base_url=URL,
    inference_model_name="served",
)
SERVER_TOOLS = [{"name": "find_papers", "description": "Finds.", "inputSchema": {"type": "object", "properties": {}}}]
MAX_TURNS = 5


async def rollout(task: str, tools: list[MCPTool]) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "system", "content": "Do the task."}, {"role": "user", "content": task}],
        tools=[*(tool.to_tool_schema() for tool in tools), complete_task_tool.to_tool_schema()],
        metrics={"task_completed": False},
    )
    async with trajectory.track_duration("model"):
        for _ in range(MAX_TURNS):
            response = await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=trajectory.messages(), tools=trajectory.tools
            )
            choice = response.choices[0]
            trajectory.messages_and_choices.append(choice)
            for call in choice.message.tool_calls or []:
                arguments = json.loads(call.function.arguments)
                if call.function.name == "complete_task":
                    trajectory.metrics["task_completed"] = arguments["success"]
                    trajectory.log(arguments["summary"])
                    trajectory.reward = 1.0
                    return trajectory.finish()
                trajectory.messages_and_choices.append(
                    {"role": "tool", "tool_call_id": call.id, "content": f"result of {call.function.name}"}
                )
    return trajectory.finish()


async def main() -> None:
    tools = [MCPTool.from_dict(tool) for tool in SERVER_TOOLS]
    scenarios = await generate_scenarios(
        tools=tools,
        resources=[MCPResource("db://papers", "papers", "All papers.")],
        num_scenarios=4,
        generator_model="maker",
        generator_api_key="generator-key",
        generator_base_url=URL,
    )
    scenarios.print_difficulty_distribution()
    train, val = scenarios.shuffle().split(train_size=3)
    group = await art.TrajectoryGroup(rollout(scenario.task, tools) for scenario in train)
    await model.log([group], split="train", step=0)
    await model.openai_client().close()
    facts = {
        "sizes": [len(train), len(val)],
        "rewards": [trajectory.reward for trajectory in group],
        "completed": [trajectory.metrics["task_completed"] for trajectory in group],
        "logs": group.trajectories[0].logs,
        "roles": [message["role"] for message in group.trajectories[0].messages()],
        "tools": [tool["function"]["name"] for tool in group.trajectories[0].tools or []],
    }
    Path("facts.json").write_text(json.dumps(facts))


asyncio.run(main())
