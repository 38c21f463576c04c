"""The same lesson as train.py, through a pipeline: sampling goes on while steps are trained.

Trainer and inference server are processes of their own. Groups are sampled all the time by a few workers; as soon as
there are enough of them they are trained, though the first of them may come from the step before. Steps are smaller
than those of train.py, and there are more of them.

    python examples/yes_no_maybe/pipeline.py
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

from plot import draw_rewards, read_rewards
from train import DEMO_MODEL, LEARNING_RATE, PROJECT, PROMPTS, REWARDS, ROLLOUTS_PER_PROMPT, ROOT, rollout

import art
from art.local import LocalBackend
from art.pipeline_trainer import PipelineTrainer

# Few, so that a group begins when the one before it ends: most of them begin after the newest step is served. With as
# many workers as prompts all groups would begin together, at the moment when the step before begins to be trained.
WORKERS = 2
# A step need not wait for all prompts: half of them are enough to learn from.
MIN_GROUPS = len(PROMPTS) // 2
# Once so many times MIN_GROUPS groups had equal answers since the last step, the lesson is learned.
LEARNED_AFTER = 8

AnyModel = art.TrainableModel[Any, Any]


async def roll_out_group(model: AnyModel, scenario: dict[str, str], config: None) -> art.TrajectoryGroup:
    """Ask one prompt several times."""
    client, adapter = model.openai_client(), model.get_inference_name()
    return await art.TrajectoryGroup(rollout(client, adapter, scenario["prompt"]) for _ in range(ROLLOUTS_PER_PROMPT))


def make_model(base_model: str, seed: int) -> AnyModel:
    """Make a model whose trainer and server have processes of their own."""
    return art.TrainableModel(
        name=f"maybe-{seed}-pipeline",
        project=PROJECT,
        base_model=base_model,
        _internal_config={
            "engine_args": {"seed": seed},
            "peft_args": {"random_state": seed},
            "trainer_gpu_ids": [0],
            "inference_gpu_ids": [1],
        },
    )


def make_trainer(model: AnyModel, backend: LocalBackend, steps: int) -> PipelineTrainer[dict[str, str], None]:
    """Make a trainer that takes so many more steps, each on half as many groups as train.py's, or more."""
    scenarios = itertools.cycle({"prompt": prompt} for prompt in PROMPTS)
    return PipelineTrainer(
        model,
        backend,
        roll_out_group,
        scenarios,
        config=None,
        num_rollout_workers=WORKERS,
        min_batch_size=MIN_GROUPS,
        max_batch_size=len(PROMPTS),
        max_steps_off_policy=1,
        discard_queue_multiplier=LEARNED_AFTER,
        learning_rate=LEARNING_RATE,
        max_steps=steps,
        log_interval_seconds=30.0,
    )


async def train(model: AnyModel, backend: LocalBackend, steps: int) -> None:
    """Train until the model has taken `steps` steps."""
    await model.register(backend)
    started, first = time.monotonic(), await model.get_step()
    trainer = make_trainer(model, backend, max(0, steps - first))
    await trainer.train()
    if trainer.collapsed:
        print("\nall answers are the same by now: there is nothing left to learn")
    print(f"\n{trainer.state.policy_version - first} steps in {time.monotonic() - started:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description='Teach a small language model to answer "maybe", with a pipeline.')
    parser.add_argument("--steps", type=int, default=16, help="steps to have taken at the end (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="each seed is a run of its own (default: %(default)s)")
    parser.add_argument("--path", type=Path, default=ROOT / ".art", help="where runs are kept (default: %(default)s)")
    parser.add_argument("--model", default=str(DEMO_MODEL), help="name or folder of the model (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="delete the run of this seed and start it anew")
    args = parser.parse_args()
    if args.model == str(DEMO_MODEL) and not DEMO_MODEL.is_dir():
        print(f"error: there is no model at {DEMO_MODEL}: make it with dev/prepare_demo_model.py", file=sys.stderr)
        return 1
    model = make_model(args.model, args.seed)
    run_dir: Path = args.path.absolute() / PROJECT / "models" / model.name
    if args.fresh:
        shutil.rmtree(run_dir, ignore_errors=True)
    try:
        with LocalBackend(path=str(args.path)) as backend:
            asyncio.run(train(model, backend, args.steps))
    except KeyboardInterrupt:
        print("\nstopped. What was trained is kept: the same command without --fresh goes on from there.")
        return 130
    for step, reward in read_rewards(run_dir).items():
        print(f"step {step:>3}: mean reward {reward:.3f}")
    draw_rewards(read_rewards(run_dir), run_dir / "reward.png", best_without_maybe=REWARDS["no"])
    print(f"reward curve: {run_dir / 'reward.png'}\nrun:          {run_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
