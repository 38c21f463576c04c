"""A long run of the pipeline in dedicated mode, one GPU for the trainer and one for the server, with faults; and the
same run in shared mode on one GPU.

Every step has to be served, probed, and used by rollouts while the next one is trained. On the way the server is made
to answer 503 while it reloads, stopped for good, and killed, once each. With one GPU both roles share it; without any
both run on the CPU.

    python dev/gpu/two_gpus.py --model /dev/shm/models/llama3.1-8b --steps 40
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil

import art
from art.local import LocalBackend
from art.pipeline_trainer import PipelineTrainer, keep_recent_and_top, make_group_rollout_fn
from dev.gpu.busy_reload import FILE_VARIABLE
from dev.gpu.make_model import is_liked
from dev.gpu.measure import write_result

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "dev" / "bench" / "results" / "two_gpus.json"
PROMPTS = [f"Say the word {word}, maybe." for word in ("yes", "no", "always", "never", "often", "now")]
SERVER_MODULE = "art.vllm.dedicated_server"
BUSY_ANSWERS = 3
SAMPLE_MS = 500
GROWTH_LIMIT = 1.02  # of memory from the second quarter of a run to its last

AnyModel = art.TrainableModel[Any, Any]


@dataclass
class Watch:
    """What is seen from outside while a pipeline runs.

    Attributes:
        answered: Requests that were answered, by the step whose name they asked for.
        failed_rollouts: What rollouts that failed said.
        served_s: When each step was first seen as served, in seconds from the start.
        faults: What was done to the server, at which step, and when the next answer came.
        utilization: For each GPU its samples, in percent.
        memory_mib: For each step the memory in use on each GPU.
    """

    began_s: float = field(default_factory=time.monotonic)
    answered: Counter[int] = field(default_factory=Counter)
    failed_rollouts: list[str] = field(default_factory=list)
    served_s: dict[int, float] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    utilization: dict[int, list[int]] = field(default_factory=dict)
    memory_mib: dict[int, list[int]] = field(default_factory=dict)
    _memory_now: dict[int, int] = field(default_factory=dict)

    def now_s(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self.began_s

    def note_served(self, step: int) -> None:
        """Note when a step is seen as served for the first time."""
        if step not in self.served_s:
            self.served_s[step] = self.now_s()
            self.memory_mib[step] = [self._memory_now[gpu] for gpu in sorted(self._memory_now)]

    def note_answer(self, step: int) -> None:
        """Note an answer; it ends the time that a fault took, if it is the first one after it."""
        self.answered[step] += 1
        for fault in self.faults:
            if fault["next_answer_after_s"] is None and self.now_s() - fault["at_s"] > fault["quiet_s"]:
                fault["next_answer_after_s"] = self.now_s() - fault["at_s"]

    @contextlib.asynccontextmanager
    async def gpus(self) -> AsyncIterator[None]:
        """Sample what the GPUs do, for as long as the block lasts; without any, nothing."""
        query = "--query-gpu=index,utilization.gpu,memory.used"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", str(SAMPLE_MS)]
        try:
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        except OSError:
            yield
            return
        reading = asyncio.create_task(self._read(process))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):  # Ctrl-C reaches it, too
                process.terminate()
            await reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            with contextlib.suppress(ValueError):
                gpu, used, memory = (int(part) for part in line.decode().split(","))
                self.utilization.setdefault(gpu, []).append(used)
                self._memory_now[gpu] = memory


def server_process() -> psutil.Process:
    """Return the inference server."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if SERVER_MODULE in child.cmdline():
                return child
    raise LookupError(f"no process runs {SERVER_MODULE}")


async def inject(kind: str, step: int, watch: Watch) -> None:
    """Do one thing to the server. `busy` is met by the next reload."""
    watch.faults.append(
        {"kind": kind, "step": step, "at_s": watch.now_s(), "next_answer_after_s": None, "quiet_s": 0.5}
    )
    if kind == "busy":
        await asyncio.to_thread(Path(os.environ[FILE_VARIABLE]).write_text, str(BUSY_ANSWERS))
        return
    process = await asyncio.to_thread(server_process)
    watch.faults[-1]["pid"] = process.pid
    process.send_signal(signal.SIGKILL if kind == "killed" else signal.SIGSTOP)


async def follow(trainer: PipelineTrainer[Any, Any], watch: Watch, faults: dict[int, str]) -> None:
    """Note each step as it is served, and do what is planned for it."""
    while True:
        step = trainer.state.policy_version
        watch.note_served(step)
        for planned in [number for number in faults if number <= step]:
            await inject(faults.pop(planned), step, watch)
        await asyncio.sleep(0.05)


def make_rollout(watch: Watch, tokens: int) -> Any:
    """Make a rollout whose reward is the share of liked tokens, as told in `make_model.py`."""

    async def rollout(model: AnyModel, scenario: dict[str, str], config: None) -> art.Trajectory:
        name = model.get_inference_name()
        question: Any = {"role": "user", "content": scenario["prompt"]}
        try:
            answer = await model.openai_client().chat.completions.create(
                model=name, messages=[question], max_tokens=tokens, extra_body={"ignore_eos": True}
            )
        except Exception as err:
            watch.failed_rollouts.append(f"{name}: {err!r}")
            raise
        watch.note_answer(int(name.rpartition("@")[2]))
        choice: Any = answer.choices[0]
        found = [int(entry.token.removeprefix("token_id:")) for entry in choice.logprobs.content]
        return art.Trajectory(
            messages_and_choices=[question, choice], reward=sum(map(is_liked, found)) / max(1, len(found))
        )

    return rollout


async def run(args: argparse.Namespace, mode: str, steps: int, faults: dict[int, str]) -> dict[str, Any]:
    """Run the pipeline in a mode and return what was seen."""
    watch, result = Watch(), {"mode": mode}
    model: AnyModel = art.TrainableModel(
        name=mode, project="two-gpus", base_model=str(args.model), _internal_config=internal_config(args, mode)
    )
    rollout = make_rollout(watch, args.tokens)

    async def evaluate(model: AnyModel, step: int, config: None) -> list[art.Trajectory]:
        return [await rollout(model, {"prompt": PROMPTS[0]}, config)]

    async with LocalBackend(path=str(args.path)) as backend, watch.gpus():
        server = {"server_args": {"middleware": ["dev.gpu.busy_reload.BusyReload"]}}
        await model.register(backend, _openai_client_config=server)  # type: ignore[arg-type]
        result["register_s"] = watch.now_s()
        trainer: PipelineTrainer[Any, Any] = PipelineTrainer(
            model,
            backend,
            make_group_rollout_fn(rollout, n=args.rollouts),
            itertools.cycle({"prompt": prompt} for prompt in PROMPTS),
            config=None,
            eval_fn=evaluate,
            eval_at_start=True,
            eval_every_n_steps=10,
            num_rollout_workers=args.workers,
            min_batch_size=args.groups,
            max_batch_size=args.groups,
            max_steps=steps,
            max_steps_off_policy=2,
            learning_rate=args.learning_rate,
            loss_fn="cispo",
            checkpoint_retention_strategy=keep_recent_and_top(recent=3, top=1),
        )
        following = asyncio.create_task(follow(trainer, watch, dict(faults)))
        began = time.monotonic()
        try:
            await trainer.train()
        except BaseException:
            result["failure"] = traceback.format_exc()
            raise
        finally:
            following.cancel()
            watch.note_served(trainer.state.policy_version)
            result["run_s"] = time.monotonic() - began
            result |= summary(watch, Path(model._get_output_dir()), steps, result["run_s"])
    return result


def summary(watch: Watch, model_dir: Path, steps: int, run_s: float) -> dict[str, Any]:
    """Say what must hold, and how fast it was."""
    history = model_dir / "history.jsonl"
    rows = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
    trained = {int(row["training_step"]): row for row in rows if "time/step_publish_s" in row}
    gaps = {step: row.get("train/sync/logprob_gap", row.get("sync/logprob_gap")) for step, row in trained.items()}
    quarters = [watch.memory_mib[step] for step in sorted(watch.memory_mib) if step >= steps // 4]
    half = len(quarters) // 3
    growth = [
        statistics.median(late) / max(1, statistics.median(early))
        for early, late in zip(zip(*quarters[:half], strict=True), zip(*quarters[-half:], strict=True), strict=True)
    ]
    return {
        "steps": steps,
        "steps_served": sorted(watch.served_s),
        "every_step_probed": sorted(step for step, gap in gaps.items() if gap is not None) == list(range(1, steps + 1)),
        "largest_logprob_gap": max((gap for gap in gaps.values() if gap is not None), default=None),
        # The last step is served when the run ends.
        "every_step_used": all(watch.answered[step] for step in range(steps)),
        "answers_by_step": dict(sorted(watch.answered.items())),
        "failed_rollouts": watch.failed_rollouts,
        "faults": watch.faults,
        "reward": [round(row["train/reward"], 4) for row in rows if "train/reward" in row],
        "memory_mib_by_step": watch.memory_mib,
        "memory_growth": growth,
        "publish_s": _spread([row["time/step_publish_s"] for row in trained.values()]),
        "train_s": _spread([row["time/step_trainer_s"] for row in trained.values()]),
        "save_s": _spread([row["time/step_save_s"] for row in trained.values() if "time/step_save_s" in row]),
        "gpu_busy_share": {gpu: statistics.mean(values) / 100 for gpu, values in watch.utilization.items()},
        "rollouts_per_s": sum(watch.answered.values()) / run_s,
    }


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "count": len(values)}


def internal_config(args: argparse.Namespace, mode: str) -> art.dev.InternalModelConfig:
    """Return the model's configuration in a mode, for as many GPUs as there are."""
    engine: dict[str, Any] = {"max_model_len": args.max_model_len, "enforce_eager": args.eager}
    config: dict[str, Any] = {
        "init_args": {"load_in_4bit": False, "max_seq_length": args.max_model_len},
        "engine_args": engine,
        "peft_args": {"r": args.rank, "lora_alpha": 2 * args.rank},
        "serving": {"inference_restarts": 5, "health_interval_s": 5.0, "health_timeout_s": 10.0},
    }
    if mode == "dedicated":
        config |= {"trainer_gpu_ids": [0], "inference_gpu_ids": [1 if args.gpus != 1 else 0]}
        if args.gpus == 1:
            config["serving"]["share_gpu"] = True
            engine["gpu_memory_utilization"] = args.memory
    return art.dev.InternalModelConfig(**config)  # type: ignore[typeddict-item]


def faults_of(result: dict[str, Any]) -> list[str]:
    """Say what does not hold of what must."""
    faults = []
    if result.get("failure"):
        return [f"the {result['mode']} run failed"]
    if set(range(result["steps"] + 1)) - set(result["steps_served"]):
        faults.append(f"not seen as served: {set(range(result['steps'] + 1)) - set(result['steps_served'])}")
    faults += ["not every step was probed"] * (not result["every_step_probed"])
    if result["mode"] == "dedicated":  # in shared mode rollouts pause while the next step is trained
        faults += ["not every step was used by rollouts"] * (not result["every_step_used"])
    faults += [f"{len(result['failed_rollouts'])} rollouts failed"] * bool(result["failed_rollouts"])
    faults += ["memory grew"] * any(growth > GROWTH_LIMIT for growth in result["memory_growth"])
    faults += [f"no answer after {fault}" for fault in result["faults"] if fault["next_answer_after_s"] is None]
    return faults


def describe(results: dict[str, Any], missed: list[str]) -> str:
    """Say a run's outcome in one line."""
    seen = results["dedicated"]
    waits = ", ".join(f"{fault['kind']} {fault['next_answer_after_s'] or 0:.0f} s" for fault in seen["faults"])
    text = (
        f"pipeline in dedicated mode: {len(seen['steps_served']) - 1} steps served, {len(seen['failed_rollouts'])} "
        f"rollouts failed, saved to served {seen['publish_s']['median']:.2f} s (median), without answers after the "
        f"faults of the server: {waits or 'none made'}; {seen['rollouts_per_s']:.1f} rollouts/s"
    )
    if "shared" in results:
        text += f", against {results['shared']['rollouts_per_s']:.1f} in shared mode"
    return f"{text}; {'; '.join(missed) or 'all that must hold does'}"


def main() -> int:
    parser = argparse.ArgumentParser(description="The pipeline in dedicated mode, with faults; and in shared mode.")
    parser.add_argument("--model", type=Path, required=True, help="as dev/gpu/make_model.py makes it, or a real one")
    parser.add_argument("--gpus", type=int, default=2, choices=[0, 1, 2], help="1: both roles share it; 0: the CPU")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--shared-steps", type=int, default=10, help="of the run in shared mode; 0: none")
    parser.add_argument("--groups", type=int, default=6, help="to a step")
    parser.add_argument("--rollouts", type=int, default=8, help="to a group")
    parser.add_argument("--tokens", type=int, default=128, help="to a rollout")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--memory", type=float, default=0.4, help="the server's share where both share one GPU")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs: the engine starts in half the time")
    parser.add_argument("--faults", default="busy,stopped,killed", help="in this order; none where it is empty")
    parser.add_argument("--path", type=Path, default=Path("/tmp/art-two-gpus"))
    parser.add_argument("--result", type=Path, default=RESULT)
    args = parser.parse_args()
    shutil.rmtree(args.path, ignore_errors=True)
    args.path.mkdir(parents=True, exist_ok=True)
    os.environ[FILE_VARIABLE] = str(args.path / "busy")
    kinds = [kind for kind in args.faults.split(",") if kind]
    faults = {args.steps * (index + 1) // (len(kinds) + 1): kind for index, kind in enumerate(kinds)}
    plan = [("dedicated", args.steps, faults)] + [("shared", args.shared_steps, {})] * bool(args.shared_steps)
    results: dict[str, Any] = {"benchmark": args.result.stem}
    if not args.gpus:
        results["device"] = f"{os.cpu_count()} CPU cores"
    missed = []
    for mode, steps, planned in plan:
        results[mode] = asyncio.run(run(args, mode, steps, planned))
        write_result(args.result, results)
        missed += [f"{mode}: {fault}" for fault in faults_of(results[mode])]
    results["summary"] = describe(results, missed)
    write_result(args.result, results)
    print(json.dumps(results, indent=1))
    print("\n".join(missed) or "all holds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
