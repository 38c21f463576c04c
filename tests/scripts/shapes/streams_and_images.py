"""Rollouts that stream, send images, use litellm, or only yield their trajectory. `streams_and_images.py URL`."""

import asyncio
import base64
import json
import sys

import litellm

import art
from art.openai import consume_chat_completion_stream
from art.utils.litellm import convert_litellm_choice_to_openai

URL = sys.argv[1]
PIXEL = base64.b64encode(b"\x89PNG not really").decode()
model = art.Model(
    name="prompted", project="scripts", inference_api_key="key", inference_base_url=URL, inference_model_name="served"
)


async def sees(detail: str) -> art.Trajectory:
    messages: art.Messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": detail}},
            ],
        }
    ]
    completion = await model.openai_client().chat.completions.create(model=model.name, messages=messages)
    return art.Trajectory(messages_and_choices=[*messages, completion.choices[0]], reward=0.5)


async def streams(stop_early: bool) -> art.Trajectory:
    messages: art.Messages = [{"role": "user", "content": "stream it"}]
    stream = await model.openai_client().chat.completions.create(model=model.name, messages=messages, stream=True)

    def on_chunk(chunk, completion) -> None:
        if stop_early and completion.choices[0].message.content:
            raise StopIteration

    completion = await consume_chat_completion_stream(stream, on_chunk)
    return art.Trajectory(messages_and_choices=[*messages, completion.choices[0]], reward=1.0)


async def asks_litellm(stream: bool) -> art.Trajectory:
    messages: art.Messages = [{"role": "user", "content": "by litellm"}]
    response = await litellm.acompletion(
        model=f"openai/{model.name}", base_url=model.inference_base_url, api_key="key", messages=messages, stream=stream
    )
    if stream:
        response = litellm.stream_chunk_builder([chunk async for chunk in response])
    choice = convert_litellm_choice_to_openai(response.choices[0])
    return art.Trajectory(messages_and_choices=[*messages, choice], reward=0.0)


async def deep_inside() -> str:
    completion = await model.openai_client().chat.completions.create(
        model=model.name, messages=[{"role": "user", "content": "deep inside"}]
    )
    art.yield_trajectory(
        art.Trajectory(
            messages_and_choices=[{"role": "user", "content": "deep inside"}, completion.choices[0]], reward=0.25
        )
    )
    return "not a trajectory"


async def captured() -> None:
    client = model.openai_client()
    messages = [{"role": "user", "content": "first"}]
    first = await client.chat.completions.create(model=model.name, messages=messages)
    messages += [first.choices[0].message, {"role": "user", "content": "second"}]
    await client.chat.completions.create(model=model.name, messages=messages, stream=False)
    art.auto_trajectory(required=True).reward = 0.75


async def main() -> list:
    trajectories = await art.gather_trajectories(
        [
            sees("low"),
            streams(stop_early=False),
            streams(stop_early=True),
            asks_litellm(stream=False),
            asks_litellm(stream=True),
            art.capture_yielded_trajectory(deep_inside()),
            art.capture_auto_trajectory(captured()),
        ],
        pbar_desc=None,
    )
    await model.log(trajectories, split="val", step=0)
    return trajectories


async def once_more(trajectories: list) -> None:
    trajectories.append(await sees("high"))  # the client is the one that the first event loop used
    await model.openai_client().close()
    facts = [
        {"reward": trajectory.reward, "texts": [message["content"] for message in trajectory.messages()]}
        for trajectory in trajectories
    ]
    with open("facts.json", "w") as file:
        json.dump(facts, file)


asyncio.run(once_more(asyncio.run(main())))
