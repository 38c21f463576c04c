"""A process that has imported everything and forks a run of a pipeline for each line on its standard input.

Run as `python -m tests.support.pipeline_launcher FOLDER`. A line is the seed of a run; answered by `started PID`, and
after its end by `ended STATUS`. A run tells what it does in files of the folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from art.pipeline_trainer import PipelineTrainer
from art.trajectories import Trajectory, TrajectoryGroup
from tests.support.conversations import make_trajectory
from tests.support.scripted_pipeline import Model, ScriptedBackend, make_group, make_scenarios, register

SCENARIOS = 600
EVAL_EVERY = 3


def note(folder: Path, file_name: str, **facts: Any) -> None:
    """Append a line to one of the run's files."""
    with (folder / f"{file_name}.jsonl").open("a") as file:
        file.write(json.dumps(facts) + "\n")


def read_notes(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the whole lines of such a file."""
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def make_trainer(
    model: Model, backend: ScriptedBackend, folder: Path, dice: random.Random
) -> PipelineTrainer[Any, Any]:
    """Make a trainer whose every stage takes a random time, some milliseconds."""

    is_new = True

    async def rollout(model: Model, scenario: dict[str, Any], config: Any) -> TrajectoryGroup:
        nonlocal is_new
        if is_new:
            is_new = False
            note(folder, "starts", step=await model.get_step(), name=model.get_inference_name())
        await asyncio.sleep(dice.random() * 0.02)
        return make_group(0.0, 1.0)

    async def pause(step: int) -> None:
        await asyncio.sleep(dice.random() * 0.01)

    async def evaluate(model: Model, step: int, config: Any) -> list[Trajectory | TrajectoryGroup]:
        await asyncio.sleep(dice.random() * 0.03)
        note(folder, "evaluations", step=step, name=model.get_inference_name())
        return [make_trajectory(0.5)]

    backend.before_step = backend.after_step = pause
    return PipelineTrainer(
        model,
        backend,
        rollout,
        make_scenarios(SCENARIOS),
        None,
        evaluate,
        num_rollout_workers=4,
        min_batch_size=2,
        max_batch_size=4,
        max_steps_off_policy=SCENARIOS,  # so that nothing goes stale: each scenario is trained, once
        queue_maxsize=6,
        eval_every_n_steps=EVAL_EVERY,
        eval_at_start=True,
        log_interval_seconds=0.1,
        stall_timeout_s=20.0,
    )


async def run(folder: Path, seed: int) -> None:
    """Run a pipeline to its end."""
    backend = ScriptedBackend(folder)
    model = await register(backend)
    trainer = make_trainer(model, backend, folder, random.Random(seed))
    signal.signal(signal.SIGUSR1, lambda *_: trainer.request_stop())
    await trainer.train()
    note(folder, "ends", step=trainer.state.policy_version, name=model.get_inference_name())


def main() -> None:
    """Fork runs."""
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 0
            try:
                asyncio.run(run(folder, int(line)))
            except BaseException:  # noqa: BLE001 - the exit status tells
                traceback.print_exc()
                status = 1
            finally:
                sys.stdout.flush()
                os._exit(status)
        sys.stderr.write(f"started {pid}\n")
        sys.stderr.flush()
        sys.stderr.write(f"ended {os.waitpid(pid, 0)[1]}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whatever the shell of the tests has set
    main()
