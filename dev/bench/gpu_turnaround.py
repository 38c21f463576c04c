"""Shared mode on one GPU, taken apart: what passes between a step's last token and the next step's first.

Also what publishing costs over the bare load call, for adapters of rank 8 and 64, and, with `--training`, how fast the
very trainer that serves in turns trains packed rows (continued by `gpu_training.py --kind plain --summarize`).

    python dev/bench/gpu_turnaround.py --model /dev/shm/models/qwen2.5-7b
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import inspect
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_training

import art
import art.local.backend
from art.inference.adapters import AdapterRegistry
from art.inference.admin_client import AdminClient
from art.inference.publish import AdapterPublisher
from art.inference.runtime import AdapterFiles
from art.local import LocalBackend
from art.probe import AdapterProbe
from art.unsloth.service import UnslothService
from art.unsloth.trainer import LoraTrainer
from art.unsloth.worker import TrainerWorker
from art.vllm.in_process import InProcessRuntime
from dev.gpu.measure import used_mib, write_result

RESULTS = Path(__file__).parent / "results"
ROUNDS = 8
Event = tuple[str, float, float]
EVENTS: list[Event] = []


def timed(owner: Any, name: str, label: str) -> None:
    """Note when a method begins and ends."""
    method = getattr(owner, name)

    def note(started: float) -> None:
        EVENTS.append((label, started, time.perf_counter()))

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return await method(*args, **kwargs)
            finally:
                note(started)
    else:

        @functools.wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                note(started)

    setattr(owner, name, wrapper)


def watch() -> None:
    """Time the parts of a step."""
    if gpu_training.DEVICE == "cuda":
        import unsloth  # noqa: F401 - before vLLM and transformers, as where nobody measures
    from vllm.v1.engine.async_llm import AsyncLLM

    parts: list[tuple[Any, str, str]] = [
        (InProcessRuntime, "_pause", "pause"),
        (AsyncLLM, "sleep", "sleep"),
        (TrainerWorker, "onload", "onload"),
        (TrainerWorker, "train_step", "train and save"),
        (LoraTrainer, "save", "save"),
        (LoraTrainer, "snapshot", "snapshot"),
        (TrainerWorker, "offload", "offload"),
        (AsyncLLM, "wake_up", "wake"),
        (AdapterPublisher, "publish", "publish"),
        (AdapterRegistry, "stage", "stage"),
        (InProcessRuntime, "load_adapter", "load"),
        (AdminClient, "score", "probe"),
    ]
    for owner, name, label in parts:
        timed(owner, name, label)


@dataclasses.dataclass
class MeasuredService(UnslothService):
    """A service that also measures itself, on its own event loop."""

    async def measure_publish(self, rank: int, folder: Path) -> dict[str, Any]:
        """Publish an adapter again and again; compare with the bare load call and the probe alone."""
        parts = self._started
        parts.publisher._max_gap = 10.0  # random adapters have no trainer to agree with
        publish_s, bare_s, probe_s, stage_s = [], [], [], []
        probe = AdapterProbe.read(folder)
        assert probe is not None
        for number in range(ROUNDS):
            step = 1000 * rank + number
            EVENTS.clear()
            await parts.publisher.publish(step, folder)
            publish_s.append(_total("publish"))
            stage_s.append(_total("stage"))
            files = AdapterFiles(step=step, name=f"bare{rank}@{number}", path=folder)
            EVENTS.clear()
            await parts.runtime.load_adapter(files)
            bare_s.append(_total("load"))
            await parts.runtime.unload_adapter(files.name)
            EVENTS.clear()
            await parts.publisher._client.score(parts.registry.name_of(step), probe.token_ids, probe.positions)
            probe_s.append(_total("probe"))
        median = {
            "publish_s": statistics.median(publish_s),
            "bare_load_s": statistics.median(bare_s),
            "probe_s": statistics.median(probe_s),
            "stage_s": statistics.median(stage_s),
        }
        median["ratio"] = median["publish_s"] / (median["bare_load_s"] + median["probe_s"])
        median["mib"] = (folder / "adapter_model.safetensors").stat().st_size / 2**20
        return median

    async def measure_noise(self) -> list[float]:
        """Probe the served step many times; return the gaps to the trainer."""
        return [await self._started.publisher.confirm_served() or 0.0 for _ in range(ROUNDS)]

    async def measure_training(self, args: Any, path: Path) -> None:
        """Time packed training with this trainer, while the engine sleeps; afterwards it is as before."""
        worker: Any = self._started.worker
        async with self._started.runtime.yielded_to_trainer():
            await worker.onload()
            try:
                await worker._run(lambda stop: _measure_training(worker._loaded, args, path))
            finally:
                await worker.offload()


def _measure_training(trainer: Any, args: Any, path: Path) -> None:
    before = trainer.snapshot()
    model = trainer._loaded.model
    gpu_training.randomize(model.adapter_parameters())
    try:
        gpu_training.run_ways(args, path, ours=gpu_training.Ours(model))
    finally:
        trainer.restore(before)


def _total(label: str) -> float:
    return sum(ended - started for name, started, ended in EVENTS if name == label)


def write_flat_adapter(source: Path, folder: Path, rank: int) -> Path:
    """Write an adapter of another rank that changes nothing, after the pattern of a checkpoint."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("trainer_state.pt", "*.safetensors"))
    weights = load_file(source / "adapter_model.safetensors")
    wide = {
        key: torch.randn(rank, value.shape[1], dtype=value.dtype) * 0.02
        if "lora_A" in key
        else torch.zeros(value.shape[0], rank, dtype=value.dtype)
        for key, value in weights.items()
    }
    save_file(wide, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "r": rank}))
    probe = AdapterProbe.read(source)
    assert probe is not None
    dataclasses.replace(probe, logprobs=probe.base_logprobs).write(folder)
    return folder


async def rollout(client: Any, name: str, number: int, tokens: int) -> art.Trajectory:
    """Sample one answer, with a reward that no other of its group has."""
    question: Any = {"role": "user", "content": "Say the word maybe, please."}
    answer = await client.chat.completions.create(
        model=name, messages=[question], max_tokens=tokens, extra_body={"ignore_eos": True}
    )
    return art.Trajectory(messages_and_choices=[question, answer.choices[0]], reward=float(number))


async def take_step(model: Any, backend: LocalBackend, tokens: int) -> dict[str, Any]:
    """Sample, train, and ask for a token of the new step at once."""
    client, name = model.openai_client(), model.get_inference_name()
    group = art.TrajectoryGroup(rollout(client, name, number, tokens) for number in range(8))
    groups = await art.gather_trajectory_groups([group], pbar_desc=None)
    EVENTS.clear()
    result = await backend.train(model, groups, learning_rate=1e-4)
    returned = time.perf_counter()
    await client.completions.create(model=model.get_inference_name(), prompt=[300, 301, 302], max_tokens=1)
    first_token = time.perf_counter()
    spans = {label: (started, ended) for label, started, ended in EVENTS}
    saved = _total("save")
    trained = spans["train and save"][1] - saved
    return {
        "paused_to_training_s": spans["train and save"][0] - spans["pause"][0],
        "training_s": spans["train and save"][1] - spans["train and save"][0] - saved,
        "trained_to_first_token_s": first_token - trained,
        "first_token_s": first_token - returned,
        "parts_s": {label: _total(label) for label in spans},
        "used_mib": used_mib(),
        "logprob_gap": result.metrics.get("sync/logprob_gap"),
    }


async def play(args: argparse.Namespace, backend: LocalBackend, result: dict[str, Any]) -> None:
    """Take steps, then publish, then train."""
    engine = {"max_model_len": 4096, "max_lora_rank": 64, "max_num_seqs": 32, "gpu_memory_utilization": args.memory}
    engine |= {"enforce_eager": True} if args.eager else {}
    engine |= {"kv_cache_memory_bytes": args.kv_gib << 30} if args.kv_gib else {}
    model: art.TrainableModel[Any, Any] = art.TrainableModel(
        name="bench",
        project="gpu",
        base_model=str(args.model),
        _internal_config={
            "engine_args": engine,  # type: ignore[typeddict-item]
            "init_args": {"load_in_4bit": False},
            "serving": {"max_live_adapters": 2},
        },
    )
    began = time.perf_counter()
    await model.register(backend)
    result["register_s"] = time.perf_counter() - began
    print("registered", round(result["register_s"], 1), "s", flush=True)
    while args.wait_for is not None and not args.wait_for.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.5)
    for _ in range(args.steps):
        result["steps"].append(await take_step(model, backend, args.tokens))
        write_result(args.result, result)
        print(json.dumps(result["steps"][-1]), flush=True)
    (hosted,) = backend._services.values()
    result["repeated_gaps"] = await hosted.actor.measure_noise()
    print("repeated gaps", result["repeated_gaps"], flush=True)
    for shape in filter(None, args.training.split(",")):
        answers, _, answer = shape.partition("x")
        path = args.result.with_name(f"gpu_training_{args.model.name}_{shape}.json")
        path.unlink(missing_ok=True)
        given = ["--model", str(args.model), "--answers", answers, "--answer", answer, "--kind", "ours"]
        options = gpu_training.make_parser().parse_args([*given, "--rounds", "3"])
        await hosted.actor.measure_training(options, path)
    newest = backend._model_dir(model) / "checkpoints" / f"{await model.get_step():04d}"
    wide = await asyncio.to_thread(write_flat_adapter, newest, args.path / "wide", 64)
    result["publish"] = {}
    for rank, folder in ((8, newest), (64, wide)):
        result["publish"][f"rank {rank}"] = await hosted.actor.measure_publish(rank, folder)
        print(rank, result["publish"][f"rank {rank}"], flush=True)
        write_result(args.result, result)


def main() -> int:
    parser = argparse.ArgumentParser(description="Shared mode on one GPU, taken apart.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="to a rollout")
    parser.add_argument("--memory", type=float, default=0.9, help="gpu_memory_utilization")
    parser.add_argument("--kv-gib", type=int, default=0, help="size of the cache; 0: what --memory leaves")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs: a faster start, slower sampling")
    parser.add_argument("--training", default="", help="also time training, such as 8x1024,8x2048")
    parser.add_argument("--wait-for", type=Path, default=None, help="begin when this file is there")
    parser.add_argument("--path", type=Path, default=Path("/tmp/art-gpu-turnaround"))
    parser.add_argument("--result", type=Path, default=None)
    args = parser.parse_args()
    args.result = args.result or RESULTS / f"gpu_turnaround_{args.model.name}.json"
    shutil.rmtree(args.path, ignore_errors=True)
    watch()
    art.local.backend.UnslothService = MeasuredService  # type: ignore[misc]
    result: dict[str, Any] = {
        "shape": {"model": args.model.name, "memory": args.memory, "kv_gib": args.kv_gib},
        "steps": [],
    }
    try:
        with LocalBackend(path=str(args.path), in_process=True) as backend:
            asyncio.run(play(args, backend, result))
    finally:
        result["used_after_close_mib"] = used_mib()
        write_result(args.result, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
