"""An agent that calls a tool over several turns; some of its rollouts fail. `tool_agent.py URL`."""

import asyncio
import json
import sys

import openai

import art
from art.utils import limit_concurrency, log_http_errors

model = art.Model(
    name="prompted",
    project="scripts",
    inference_api_key="key",
    inference_base_url=sys.argv[1],
    inference_model_name="served",
)
TOOLS: art.Tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tell the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


async def get_weather(city: str) -> str:
    return f"sunny in {city}"


@limit_concurrency(4)
@log_http_errors
@art.retry(max_attempts=2, delay=0)
async def rollout(question: str) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "You know the weather."},
            {"role": "user", "content": question},
        ],
        tools=TOOLS,
        reward=0.0,
        metadata={"question": question},
    )
    client = model.openai_client()
    for _ in range(4):
        trajectory.metrics["turns"] = trajectory.metrics.get("turns", 0) + 1
        async with trajectory.track_duration("llm"):
            completion = await client.chat.completions.create(
                model=model.get_inference_name(), messages=trajectory.messages(), tools=trajectory.tools
            )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        if not choice.message.tool_calls:
            break
        for call in choice.message.tool_calls:
            result = await get_weather(**json.loads(call.function.arguments))
            trajectory.messages_and_choices.append({"role": "tool", "tool_call_id": call.id, "content": result})
            trajectory.log(f"called {call.function.name}")
    trajectory.reward = 1.0 if "sunny" in choice.message.content else 0.0
    return trajectory.finish()


async def score(group: art.TrajectoryGroup) -> art.TrajectoryGroup | None:
    return group if group.trajectories else None


async def main() -> None:
    questions = ["Oslo?", "please fail", "Bergen?"]
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(question) for _ in range(2)) for question in questions),
        pbar_desc="gather",
        max_exceptions=2,
        after_each=score,
    )
    several = await art.gather_trajectories((rollout(question) for question in questions), max_exceptions=1)
    await model.log(groups, split="val")
    await model.log(several, split="test", step=3)
    try:
        await art.gather_trajectories((rollout("please fail") for _ in range(3)), max_exceptions=1)
    except openai.BadRequestError as error:
        raised = type(error).__name__
    with open("facts.json", "w") as file:
        json.dump(
            {
                "groups": [len(group) for group in groups],
                "rewards": [[trajectory.reward for trajectory in group] for group in groups],
                "turns": groups[0].trajectories[0].metrics["turns"],
                "roles": [message["role"] for message in groups[0].trajectories[0].messages()],
                "several": [type(item).__name__ for item in several],
                "raised": raised,
            },
            file,
        )


asyncio.run(main())
