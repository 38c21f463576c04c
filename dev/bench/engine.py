"""A real engine with the tiny model, for benchmarks of serving. Not a benchmark itself."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from common import ROOT

from art.dev import get_openai_server_config
from art.dev.settings import CPU_ENGINE_DEFAULTS, ServingSettings
from art.inference.adapters import AdapterRegistry
from art.inference.process_server import ServerSpec
from art.inference.publish import AdapterPublisher
from art.inference.runtime import InferenceRuntime
from art.inference.supervised import SupervisedRuntime
from art.vllm.engine import EnginePlan, plan_engine
from art.vllm.in_process import InProcessRuntime
from tests.support.tiny_model import make_adapter, make_tiny_model

CACHE = ROOT / ".cache" / "bench"


@dataclass
class Stand:
    """A running engine, what publishes to it, and adapters to publish."""

    runtime: InferenceRuntime
    publisher: AdapterPublisher
    registry: AdapterRegistry
    adapters: list[Path]
    base: Path


def tiny_model(adapters: int) -> tuple[Path, list[Path]]:
    """Make the tiny model and its adapters once, and keep them."""
    base = CACHE / "base"
    if not (base / "config.json").exists():
        make_tiny_model(base)
    folders = [CACHE / "adapters" / f"{seed:04d}" for seed in range(adapters)]
    for seed, folder in enumerate(folders):
        if not (folder / "probe.json").exists():
            make_adapter(base, folder, seed=seed)
    return base, folders


def plan(base: Path, live: int) -> EnginePlan:
    """Return how the engine is started."""
    return plan_engine(
        engine_args={
            "model": str(base),
            "dtype": "float32",
            "max_model_len": 1024,
            "max_num_seqs": 32,
            **CPU_ENGINE_DEFAULTS,
            "kv_cache_memory_bytes": 128 << 20,
        },
        server_config=get_openai_server_config("bench", str(base), "unused", lora_path="/unused/0000"),
        overrides={},
        max_live_adapters=live,
        has_cuda=False,
        cpu_threads=1,
    )


@contextlib.asynccontextmanager
async def running(mode: str, *, adapters: int = 4, live: int = 4) -> AsyncIterator[Stand]:
    """Run an engine in this process ("shared") or in one of its own ("dedicated")."""
    base, folders = tiny_model(adapters)
    settings = ServingSettings(max_live_adapters=live)
    with tempfile.TemporaryDirectory() as folder:
        runtime: InferenceRuntime
        engine_plan = plan(base, live)
        if mode == "shared":
            runtime = await InProcessRuntime.start(
                engine_plan, host="127.0.0.1", port=0, settings=settings, log_path=Path(folder) / "vllm.log"
            )
        else:
            spec = ServerSpec(
                model=str(base),
                engine_args=engine_plan.engine_args,
                server_args=engine_plan.server_args,
                host="127.0.0.1",
                port=0,
                log_path=Path(folder) / "vllm-dedicated.log",
                start_timeout_s=300,
            )
            runtime = await SupervisedRuntime.start(spec, settings)
        registry = AdapterRegistry("bench", Path(folder))
        publisher = AdapterPublisher(runtime, registry, max_logprob_gap=None, max_live_adapters=live)
        try:
            yield Stand(runtime, publisher, registry, folders, base)
        finally:
            await publisher.close()
            await runtime.close()
            registry.close()
