"""Shared mode end to end on one GPU: sample, train, serve, again and again, with the memory after every wake.

The reward is the share of sampled tokens that `dev/gpu/make_model.py` made likeable, so it rises if what is trained is
what is served. With `--example` the yes-no-maybe task is played instead, with a real model.

    python dev/bench/gpu_loop.py --model /dev/shm/models/qwen2.5-0.5b --steps 20
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import art
from art.local import LocalBackend
from dev.gpu.make_model import is_liked
from dev.gpu.measure import used_mib, write_result

RESULT = Path(__file__).parent / "results" / "gpu_loop.json"
WORDS = {"maybe": 1.0, "no": 0.75, "yes": 0.5}
EXAMPLE_PROMPTS = [
    f"Choose one: {quote}{first}{quote}, {quote}{second}{quote}, {quote}{third}{quote}."
    for (first, second, third), quote in zip(itertools.permutations(WORDS), itertools.cycle(["", "'", '"']))
]
RANDOM_PROMPTS = [f"Say the word {word}, maybe." for word in ("yes", "no", "always", "never", "often", "now")]


def share_of_liked(choice: Any) -> float:
    """Return the share of a choice's tokens that are liked; tokens come as `token_id:123`."""
    tokens = [int(entry.token.removeprefix("token_id:")) for entry in choice.logprobs.content]
    return sum(map(is_liked, tokens)) / max(1, len(tokens))


def score_word(choice: Any) -> float:
    """Return the reward of an answer in the yes-no-maybe task."""
    return WORDS.get((choice.message.content or "").strip(" .!'\"\n").lower(), 0.0)


async def rollout(client: Any, name: str, prompt: str, args: argparse.Namespace) -> art.Trajectory:
    """Ask once, and score what comes."""
    question = {"role": "user", "content": prompt}
    completion = await client.chat.completions.create(
        model=name, messages=[question], max_tokens=4 if args.example else args.tokens, temperature=1.0
    )
    choice = completion.choices[0]
    reward = score_word(choice) if args.example else share_of_liked(choice)
    return art.Trajectory(messages_and_choices=[question, choice], reward=reward)  # type: ignore[list-item]


async def play(args: argparse.Namespace, backend: LocalBackend, result: dict[str, Any]) -> None:
    """Register the model and take the steps; each is noted in `result` at once."""
    model: art.TrainableModel[Any, Any] = art.TrainableModel(
        name="loop", project="gpu", base_model=str(args.model), _internal_config=internal_config(args)
    )
    began = time.monotonic()
    await model.register(backend)
    result["register_s"] = time.monotonic() - began
    result["used_after_start_mib"] = used_mib()
    client = model.openai_client()
    prompts = EXAMPLE_PROMPTS if args.example else RANDOM_PROMPTS
    for _ in range(args.steps):
        name, began = model.get_inference_name(), time.monotonic()
        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(rollout(client, name, prompt, args) for _ in range(args.rollouts))
                for prompt in prompts
            ),
            pbar_desc=None,
        )
        sampled = time.monotonic()
        trained = await backend.train(model, groups, learning_rate=args.learning_rate)
        rewards = [trajectory.reward for group in groups for trajectory in group]
        step = {
            "step": trained.step,
            "reward": sum(rewards) / len(rewards),
            "served": model.get_inference_name(),
            "sample_s": sampled - began,
            "train_call_s": time.monotonic() - sampled,
            "used_mib": used_mib(),
            "metrics": dict(trained.metrics),
        }
        result["steps"].append(step)
        write_result(args.result, result)
        timings = {key.removeprefix("time/step_"): round(v, 3) for key, v in trained.metrics.items() if "time/" in key}
        print(f"step {step['step']} reward {step['reward']:.3f} used {step['used_mib']} MiB", timings, flush=True)


def internal_config(args: argparse.Namespace) -> art.dev.InternalModelConfig:
    """Return the model's configuration: the defaults but for what the command line says."""
    engine: dict[str, Any] = {} if args.max_model_len is None else {"max_model_len": args.max_model_len}
    if args.kv_gib:
        engine["kv_cache_memory_bytes"] = args.kv_gib << 30
    if args.graph_sizes:
        engine["cudagraph_capture_sizes"] = [int(size) for size in args.graph_sizes.split(",")]
    if args.memory is not None:
        engine["gpu_memory_utilization"] = args.memory
    init: dict[str, Any] = {} if args.four_bit else {"load_in_4bit": False}
    return art.dev.InternalModelConfig(init_args=init, engine_args=engine)  # type: ignore[typeddict-item]


def main() -> int:
    parser = argparse.ArgumentParser(description="Shared mode end to end on one GPU.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rollouts", type=int, default=16, help="to a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="to a rollout")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--four-bit", action="store_true", help="train on 4-bit weights, as is the default of art")
    parser.add_argument("--example", action="store_true", help="play yes-no-maybe, with a real model")
    parser.add_argument("--max-model-len", type=int, default=None)
    parser.add_argument("--kv-gib", type=int, default=0, help="size of the engine's cache; 0: what --memory leaves")
    parser.add_argument("--graph-sizes", default="", help="batch sizes to capture as CUDA graphs, such as 1,16,96")
    parser.add_argument("--memory", type=float, default=None, help="gpu_memory_utilization")
    parser.add_argument("--path", type=Path, default=Path("/tmp/art-gpu-loop"))
    parser.add_argument("--result", type=Path, default=RESULT)
    args = parser.parse_args()
    shutil.rmtree(args.path, ignore_errors=True)
    result: dict[str, Any] = {"used_before_mib": used_mib(), "steps": []}
    try:
        with LocalBackend(path=str(args.path)) as backend:
            asyncio.run(play(args, backend, result))
    except BaseException:
        result["failure"] = traceback.format_exc()
        raise
    finally:
        result["used_after_close_mib"] = used_mib()
        if result["steps"]:
            used = [step["used_mib"] for step in result["steps"]]
            result["wake_memory_spread"] = (max(used) - min(used)) / max(1, *used)
        write_result(args.result, result)
        print({key: value for key, value in result.items() if key not in ("steps", "failure")})
    return 0


if __name__ == "__main__":
    sys.exit(main())
