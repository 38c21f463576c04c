"""The example through a pipeline against the same example in a plain loop, both in dedicated mode.

Trains the demo model from scratch twice, with the same seed, prompts and batch size: by the loop of `train.py`, which
samples, then trains, and by the pipeline of `pipeline.py`, which does both at once on answers that may be a step old.
Prints the ratio of the times until the mean reward of two steps in a row reaches a target, and of the times of a step.

    python dev/bench/pipeline_loop.py --steps 10
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common import ROOT, keep

sys.path.insert(0, str(ROOT / "examples" / "yes_no_maybe"))

from pipeline import make_model, make_trainer
from train import DEMO_MODEL
from train import train as train_plainly

import art
from art.local import LocalBackend


async def measure(name: str, model: art.TrainableModel[Any, Any], folder: Path, steps: int) -> list[dict[str, float]]:
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
        {"step": row["step"], "at_s": row["time/wall_clock_sec"] - started, "reward": row["train/reward"]}
        for row in rows
        if "train/reward" in row
    ]


def reached_at_s(steps: list[dict[str, float]], target: float) -> float | None:
    """Return when the mean reward of two steps in a row had reached the target."""
    for before, step in itertools.pairwise(steps):
        if fmean([before["reward"], step["reward"]]) >= target:
            return step["at_s"]
    return None


def step_s(steps: list[dict[str, float]]) -> float:
    """Return the median time from one step to the next."""
    return median(after["at_s"] - before["at_s"] for before, after in itertools.pairwise(steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="steps of the loop; the pipeline takes one more")
    parser.add_argument("--target", type=float, default=0.6, help="mean reward to reach (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=str(DEMO_MODEL))
    args = parser.parse_args()
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("plain", "pipeline"):
            model = make_model(args.model, args.seed)
            steps = args.steps + (name == "pipeline")  # what it learns from may be a step older
            runs[name] = asyncio.run(measure(name, model, Path(folder) / name, steps))
    reached = {name: reached_at_s(steps, args.target) for name, steps in runs.items()}
    ratio = None
    if reached["plain"] is not None and reached["pipeline"] is not None:
        ratio = reached["plain"] / reached["pipeline"]
    speed = step_s(runs["plain"]) / step_s(runs["pipeline"])
    keep(
        "pipeline_loop",
        {"target_reward": args.target, "reached_at_s": reached, "speedup": ratio, "step_speedup": speed, "runs": runs},
        f"mean reward {args.target} after "
        + ", ".join(f"{'-' if at is None else round(at)} s ({name})" for name, at in reached.items())
        + f": {'-' if ratio is None else format(ratio, '.2f')} times as fast; a step {speed:.2f} times as fast",
    )


if __name__ == "__main__":
    main()
