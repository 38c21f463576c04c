"""Small pieces of a training script, for tests and the scripts that they start: a tiny model, rollouts, a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

import art
from art import dev
from art.local import LocalBackend
from art.types import LocalTrainResult

PROMPTS = ("say yes or no please", "say maybe, and then say it again")
GROUP_SIZE = 4
ANSWER_TOKENS = 12
ROW_TOKENS = 72  # makes several rows of a batch, and as many optimizer steps
LEARNING_RATE = 1e-2  # one step visibly changes what the tiny model answers
FIXED_PROMPT = "say the word maybe please, and then say it again many times over. " * 8

Groups = list[art.TrajectoryGroup]
Tiny = art.TrainableModel[None, dict[str, Any]]


def tiny_config() -> dev.InternalModelConfig:
    """Return settings that keep engine and trainer small."""
    return {
        "engine_args": {"max_model_len": 1024, "kv_cache_memory_bytes": 128 << 20},
        "init_args": {"max_seq_length": 1024},
    }


def make_model(base: Path | str, *, name: str = "tiny", project: str = "project", **config: Any) -> Tiny:
    """Return a trainable model over a tiny base model."""
    internal: Any = {**tiny_config(), **config}
    return art.TrainableModel(name=name, project=project, base_model=str(base), _internal_config=internal)


async def rollout(model: Tiny, prompt: str, reward: float) -> art.Trajectory:
    """Sample one answer; its reward is given, so that no run of luck makes a group's rewards equal."""
    messages: Any = [{"role": "user", "content": prompt}]
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=ANSWER_TOKENS, extra_body={"ignore_eos": True}
    )
    return art.Trajectory(messages_and_choices=[*messages, answer.choices[0]], reward=reward)


async def sample(model: Tiny, *, equal_rewards: bool = False) -> Groups:
    """Sample a group for each prompt."""
    return await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(
                rollout(model, prompt, 0.0 if equal_rewards else index / GROUP_SIZE) for index in range(GROUP_SIZE)
            )
            for prompt in PROMPTS
        ),
        pbar_desc=None,
    )


async def train_step(backend: LocalBackend, model: Tiny, groups: Groups | None = None) -> LocalTrainResult:
    """Sample, train in several optimizer steps, log."""
    groups = groups or await sample(model)
    result = await backend.train(model, groups, learning_rate=LEARNING_RATE, packed_sequence_length=ROW_TOKENS)
    await model.log(groups, metrics=result.metrics, step=result.step, split="train")
    return result


async def fixed_logprobs(model: Tiny, name: str | None = None, tokens: int = 8) -> list[float]:
    """Score the greedy answer to a fixed prompt under a name; equal weights give equal values."""
    answer = await model.openai_client().chat.completions.create(
        model=name or model.get_inference_name(),
        messages=[{"role": "user", "content": FIXED_PROMPT}],
        max_tokens=tokens,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    return [entry.logprob for entry in logprobs.content or []]


async def listed_names(model: Tiny) -> set[str]:
    """Ask the server which names it answers to, without this package's client."""
    async with plain_client() as client:
        return await ask_names(client, model)


def plain_client() -> httpx.AsyncClient:
    """Return an ordinary HTTP client; making one loads certificates otherwise, which takes a while."""
    return httpx.AsyncClient(trust_env=False, verify=False, timeout=60)  # noqa: S501 - loopback


async def ask_names(client: httpx.AsyncClient, model: Tiny) -> set[str]:
    """Do what `listed_names` does, with a client that is there."""
    headers = {"Authorization": f"Bearer {model.inference_api_key}"}
    response = await client.get(f"{model.inference_base_url}/models", headers=headers)
    response.raise_for_status()
    return {card["id"] for card in response.json()["data"]}
