"""The example through a pipeline against the same example in a plain loop, both in dedicated mode.

Trains the demo model from scratch twice, with the same seed, prompts and learning rate: by the loop of `train.py`,
which samples all prompts, then trains on them, and by the pipeline of `pipeline.py`, which does both at once. It trains
on answers that may be a step old, and as soon as half of the prompts are there. Prints the ratio of the times until the
newest groups, as many as a step of the loop has, reach a mean reward, and of the groups sampled in a second.

    python dev/bench/pipeline_loop.py --steps 6
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from common import ROOT, keep

sys.path.insert(0, str(ROOT / "examples" / "yes_no_maybe"))

from pipeline import make_model, make_trainer
from train import DEMO_MODEL, PROMPTS
from train import train as train_plainly

import art
from art.local import LocalBackend
from art.utils.trajectory_logging import read_trajectory_groups_parquet


async def measure(name: str, model: art.TrainableModel[Any, Any], folder: Path, steps: int) -> list[dict[str, Any]]:
    """Train, and return when each step was there, in seconds since the server served, and its mean reward."""
    with LocalBackend(path=str(folder)) as backend:
        await model.register(backend)
        started = time.monotonic() - model._run_start_monotonic
        print(f"{name}: {steps} steps", flush=True)
        if name == "plain":
            with contextlib.redirect_stdout(io.StringIO()):
                await train_plainly(model, backend, steps)
        else:
            await make_trainer(model, backend, steps).train()
        rows = [json.loads(line) for line in (Path(model._get_output_dir()) / "history.jsonl").read_text().splitlines()]
        await model.openai_client().close()
    return [
        {
            "step": row["step"],
            "at_s": row["time/wall_clock_sec"] - started,
            "groups": row["data/step_num_groups_submitted"],
            "rewards": sampled_rewards(Path(model._get_output_dir()) / "trajectories", row["step"]),
        }
        for row in rows
        if "train/reward" in row
    ]


def sampled_rewards(folder: Path, step: int) -> list[float]:
    """Return the mean reward of each group that was sampled for a step, also of those that taught nothing."""
    paths = [folder / split / f"{step:04d}.parquet" for split in ("discarded", "train")]
    groups = [group for path in paths if path.exists() for group in read_trajectory_groups_parquet(path)]
    return [fmean(trajectory.reward for trajectory in group) for group in groups]


def reached_at_s(steps: list[dict[str, Any]], target: float) -> float | None:
    """Return when the mean reward of the newest groups, as many as a step of the loop has, had reached the target."""
    rewards: list[float] = []
    for step in steps:
        rewards += step["rewards"]
        if len(rewards) >= len(PROMPTS) and fmean(rewards[-len(PROMPTS) :]) >= target:
            return float(step["at_s"])
    return None


def groups_per_s(steps: list[dict[str, Any]]) -> float:
    """Return how many groups were sampled in a second, from the first step to the last."""
    return sum(len(step["rewards"]) for step in steps[1:]) / float(steps[-1]["at_s"] - steps[0]["at_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="steps of the loop; the pipeline takes twice as many")
    parser.add_argument("--target", type=float, default=0.6, help="mean reward to reach (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=str(DEMO_MODEL))
    args = parser.parse_args()
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("plain", "pipeline"):
            model = make_model(args.model, args.seed)
            steps = args.steps * (2 if name == "pipeline" else 1)
            runs[name] = asyncio.run(measure(name, model, Path(folder) / name, steps))
    reached = {name: reached_at_s(steps, args.target) for name, steps in runs.items()}
    ratio = None
    if reached["plain"] is not None and reached["pipeline"] is not None:
        ratio = reached["plain"] / reached["pipeline"]
    speed = groups_per_s(runs["pipeline"]) / groups_per_s(runs["plain"])
    keep(
        "pipeline_loop",
        {
            "target_reward": args.target,
            "reached_at_s": reached,
            "speedup": ratio,
            "groups_per_s_ratio": speed,
            "runs": runs,
        },
        f"mean reward {args.target} after "
        + ", ".join(f"{'-' if at is None else round(at)} s ({name})" for name, at in reached.items())
        + f": {'-' if ratio is None else format(ratio, '.2f')} times as fast; "
        + f"{speed:.2f} times as many groups a second",
    )


if __name__ == "__main__":
    main()
