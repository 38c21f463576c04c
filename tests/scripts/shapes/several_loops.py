"""A script that calls `asyncio.run` for each of its parts, with one backend and one model for all of them."""

import asyncio
import json
import os
import random

import litellm
from openai import AsyncOpenAI

import art
from art.local import LocalBackend
from art.utils import iterate_dataset
from art.utils.litellm import convert_litellm_choice_to_openai

backend = LocalBackend(path=".art")
model = art.TrainableModel(
    name="loops",
    project="scripts",
    base_model=os.environ["BASE_MODEL"],
    _internal_config={"init_args": {"max_seq_length": 1024}, "engine_args": {"max_model_len": 1024}},
)
facts: dict = {"served": {}, "dataset": [], "failed": []}


class Unlucky(Exception):
    pass


class ScenarioTrajectory(art.Trajectory):
    scenario: str | None = None


async def rollout(scenario: str, fails: bool = False) -> art.Trajectory:
    client = model.openai_client()
    messages: art.Messages = [{"role": "user", "content": scenario}]
    if fails:
        raise Unlucky(scenario)
    completion = await client.chat.completions.create(
        model=model.inference_model_name, messages=messages, max_tokens=8, extra_body={"ignore_eos": True}
    )
    facts["served"].setdefault("inference_model_name", []).append(completion.model)
    return ScenarioTrajectory(
        messages_and_choices=[*messages, completion.choices[0]], reward=random.random(), scenario=scenario
    )


async def litellm_rollout(scenario: str) -> art.Trajectory:
    messages: art.Messages = [{"role": "user", "content": scenario}]
    response = await litellm.acompletion(messages=messages, max_tokens=8, **model.litellm_completion_params())
    facts["served"].setdefault("litellm", []).append(response.model)
    choice = convert_litellm_choice_to_openai(response.choices[0])
    return art.Trajectory(messages_and_choices=[*messages, choice], reward=random.random())


async def streaming_rollout(scenario: str) -> None:
    client = AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)
    stream = await client.chat.completions.create(
        model=model.name, messages=[{"role": "user", "content": scenario}], max_tokens=8, stream=True
    )
    async for chunk in stream:
        facts["served"].setdefault("stream", []).append(chunk.model)
    art.auto_trajectory(required=True).reward = random.random()


async def setup() -> None:
    await model.register(backend)


async def train() -> None:
    for batch in iterate_dataset(
        [f"scenario {n}" for n in range(4)], groups_per_step=2, initial_step=await model.get_step(), use_tqdm=False
    ):
        facts["dataset"].append([batch.step, batch.epoch, batch.epoch_step, len(batch.items)])
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(item, fails=n == 3) for n in range(4)) for item in batch.items),
            pbar_desc=f"step {batch.step}",
            max_exceptions=0.5,
        )
        facts["failed"].append(sum(len(group.exceptions) for group in groups))
        result = await backend.train(model, groups, learning_rate=1e-3)
        await model.log(groups, split="train", metrics=result.metrics, step=result.step)


async def evaluate() -> None:
    trajectories = await art.gather_trajectories(
        [
            rollout("on another loop"),
            litellm_rollout("by litellm"),
            litellm_rollout("again"),
            art.capture_auto_trajectory(streaming_rollout("hi")),
        ],
        pbar_desc=None,
    )
    await model.log(trajectories, split="val")
    groups = (art.TrajectoryGroup(litellm_rollout(f"batch {n}") for _ in range(2)) for n in range(3))
    async for batch in art.trajectory_group_batches(groups, batch_size=2, pbar_desc=None):
        facts.setdefault("batches", []).append(len(batch))
    result = await backend.train(model, [*batch, art.TrajectoryGroup(trajectories)])
    facts["last"] = [result.step, model.get_inference_name(), model.inference_model_name]
    await model.openai_client().close()


asyncio.run(setup())
asyncio.run(train())
asyncio.run(evaluate())
asyncio.run(backend.close())
with open("facts.json", "w") as file:
    json.dump(facts, file)
