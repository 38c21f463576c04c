"""Teach a small language model to answer "maybe".

Asked to choose between yes, no and maybe, SmolLM2-135M-Instruct mostly rambles. It is never shown an answer: it samples
some, each gets a reward, and GRPO makes the better ones likelier. After every step the new LoRA adapter is served, and
the next samples come from it. Needs no GPU; README.md beside this file says more.

    python examples/yes_no_maybe/train.py
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from plot import draw_rewards, read_rewards

import art
from art.local import LocalBackend

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"
PROJECT = "yes-no-maybe"

REWARDS = {"maybe": 1.0, "no": 0.75, "yes": 0.5}
ROLLOUTS_PER_PROMPT = 16
LEARNING_RATE = 3.5e-4
MAX_ANSWER_TOKENS = 4  # room for 'maybe' in quotes and the end of the turn
ROW = "{:>4}  {:>6}  {:<12} {:>8}  {:>8} {:>8} {:>10}"  # of the table that is printed

# Each order of the three words once, so that no place in the list is the right answer.
PROMPTS = [
    f"Choose one: {quote}{first}{quote}, {quote}{second}{quote}, {quote}{third}{quote}."
    for (first, second, third), quote in zip(
        itertools.permutations(["yes", "no", "maybe"]), itertools.cycle(["", "'", '"'])
    )
]


def score(answer: str) -> float:
    """Return the reward of an answer; case, quotes and the full stop do not matter."""
    return REWARDS.get(answer.strip(" .!'\"\n").lower(), 0.0)


async def rollout(client: AsyncOpenAI, adapter: str, prompt: str) -> art.Trajectory:
    """Ask once, and score what comes."""
    question: art.types.Message = {"role": "user", "content": prompt}
    completion = await client.chat.completions.create(
        model=adapter, messages=[question], max_tokens=MAX_ANSWER_TOKENS, temperature=1.0
    )
    choice = completion.choices[0]
    return art.Trajectory(messages_and_choices=[question, choice], reward=score(choice.message.content or ""))


async def train(model: art.TrainableModel[Any, Any], backend: LocalBackend, steps: int) -> None:
    """Sample, train, log and serve the result, until the model has taken `steps` steps."""
    await model.register(backend)
    client = model.openai_client()
    print("\n" + ROW.format("", "mean", "adapter", "logprob", "", "seconds", ""))
    print(ROW.format("step", "reward", "served", "gap", "sampling", "training", "publishing"), flush=True)
    for _ in range(await model.get_step(), steps):
        adapter = model.get_inference_name()
        started = time.monotonic()
        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup(rollout(client, adapter, prompt) for _ in range(ROLLOUTS_PER_PROMPT))
                for prompt in PROMPTS
            ),
            pbar_desc=None,
        )
        sampling_s = time.monotonic() - started
        result = await backend.train(model, groups, learning_rate=LEARNING_RATE)
        await model.log(groups, split="train", metrics=result.metrics, step=result.step)
        print_row(result, groups, model.get_inference_name(), sampling_s)


def print_row(result: art.TrainResult, groups: list[art.TrajectoryGroup], adapter: str, sampling_s: float) -> None:
    """Print one line of the table; a dash stands for what the backend did not measure."""
    rewards = [trajectory.reward for group in groups for trajectory in group]
    gap = result.metrics.get("sync/logprob_gap")
    times_s = [sampling_s, result.metrics.get("time/step_trainer_s"), result.metrics.get("time/step_publish_s")]
    print(
        ROW.format(
            result.step,
            f"{sum(rewards) / len(rewards):.3f}",
            adapter,
            "-" if gap is None else f"{gap:.1e}",
            *("-" if value is None else f"{value:.1f}" for value in times_s),
        ),
        flush=True,
    )


def report(run_dir: Path) -> None:
    """Say how the reward moved, draw it, and tell where everything is."""
    rewards = read_rewards(run_dir)
    values = list(rewards.values())
    if len(values) >= 6:
        first, last = sum(values[:3]) / 3, sum(values[-3:]) / 3
        print(
            f"\nmean reward: {first:.3f} in the first three steps, {last:.3f} in the last three ({last - first:+.3f})"
        )
    draw_rewards(rewards, run_dir / "reward.png", best_without_maybe=REWARDS["no"])
    print(f"reward curve: {run_dir / 'reward.png'}\nrun:          {run_dir}")


def main() -> int:
    parser = argparse.ArgumentParser(description='Teach a small language model to answer "maybe".')
    parser.add_argument("--steps", type=int, default=10, help="steps to have taken at the end (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="each seed is a run of its own (default: %(default)s)")
    parser.add_argument("--path", type=Path, default=ROOT / ".art", help="where runs are kept (default: %(default)s)")
    parser.add_argument("--model", default=str(DEMO_MODEL), help="name or folder of the model (default: %(default)s)")
    parser.add_argument("--dedicated", action="store_true", help="trainer on GPU 0, inference server on GPU 1")
    parser.add_argument("--fresh", action="store_true", help="delete the run of this seed and start it anew")
    args = parser.parse_args()
    if args.model == str(DEMO_MODEL) and not DEMO_MODEL.is_dir():
        print(f"error: there is no model at {DEMO_MODEL}: make it with dev/prepare_demo_model.py", file=sys.stderr)
        return 1

    config = art.dev.InternalModelConfig(engine_args={"seed": args.seed}, peft_args={"random_state": args.seed})
    if args.dedicated:
        config |= art.dev.InternalModelConfig(trainer_gpu_ids=[0], inference_gpu_ids=[1])
    model = art.TrainableModel(
        name=f"maybe-{args.seed}{'-dedicated' if args.dedicated else ''}",
        project=PROJECT,
        base_model=args.model,
        _internal_config=config,
    )
    run_dir: Path = args.path.absolute() / PROJECT / "models" / model.name
    if args.fresh:
        shutil.rmtree(run_dir, ignore_errors=True)
    if len(read_rewards(run_dir)) >= args.steps:
        print(f"this run has taken its {args.steps} steps: start anew with --fresh, or go on with a larger --steps")
    else:
        print(
            f"starting trainer and inference engine for {args.model}; on a CPU this takes most of a minute", flush=True
        )
        try:
            with LocalBackend(path=str(args.path)) as backend:
                asyncio.run(train(model, backend, args.steps))
        except KeyboardInterrupt:
            print("\nstopped. What was trained is kept: the same command without --fresh goes on from there.")
            return 130
    report(run_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
