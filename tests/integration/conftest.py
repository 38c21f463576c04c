"""One tiny model, its adapters, and one real engine for the whole session: an engine takes 15 to 30 s to start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from art.dev import get_openai_server_config
from art.dev.settings import CPU_ENGINE_DEFAULTS, ServingSettings
from art.inference.adapters import AdapterRegistry
from art.inference.publish import AdapterPublisher
from art.vllm.engine import EnginePlan, plan_engine
from art.vllm.in_process import InProcessRuntime
from tests.support.loop_thread import LoopThread
from tests.support.tiny_model import make_adapter, make_tiny_model

ADAPTERS = 6
LIVE_ADAPTERS = 3
KV_CACHE_BYTES = 128 << 20


@dataclass
class TinyModel:
    """The base model and adapters 0 (no effect) to 5 (random, large effect)."""

    base: Path
    adapters: list[Path]


@dataclass
class Serving:
    """A real engine and what publishes to it. Each test takes a model name of its own."""

    loop: LoopThread
    runtime: InProcessRuntime
    folder: Path
    publishers: list[AdapterPublisher] = field(default_factory=list)

    def publisher(self, model_name: str) -> tuple[AdapterPublisher, AdapterRegistry]:
        """Return a publisher for another model on the same engine."""
        registry = AdapterRegistry(model_name, self.folder / model_name)
        publisher = AdapterPublisher(self.runtime, registry, max_logprob_gap=None, max_live_adapters=LIVE_ADAPTERS)
        self.publishers.append(publisher)
        return publisher, registry


def plan_tiny_engine(base: Path) -> EnginePlan:
    """Return the plan of an engine for the tiny model on a CPU."""
    return plan_engine(
        engine_args={
            "model": str(base),
            "dtype": "float32",
            "max_model_len": 1024,
            "max_lora_rank": 8,
            "max_loras": 2,  # few, so that adapters are paged and a batch can use every slot
            "enable_prompt_tokens_details": True,
            **CPU_ENGINE_DEFAULTS,
            "kv_cache_memory_bytes": KV_CACHE_BYTES,
        },
        server_config=get_openai_server_config("tiny", str(base), "unused", lora_path="/unused/0000"),
        overrides={},
        max_live_adapters=LIVE_ADAPTERS,
        has_cuda=False,
        cpu_threads=1,
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    folder = tmp_path_factory.mktemp("tiny")
    base = make_tiny_model(folder / "base")
    adapters = [
        make_adapter(base, folder / "adapters" / f"{seed:04d}", seed=seed, scale=0.3 if seed else 0.0)
        for seed in range(ADAPTERS)
    ]
    return TinyModel(base, adapters)


@pytest.fixture(scope="session")
def serving(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    loop = LoopThread()
    start = InProcessRuntime.start(
        plan_tiny_engine(tiny.base),
        host="127.0.0.1",
        port=0,
        settings=ServingSettings(),
        log_path=Path("standard output"),
    )
    runtime = loop.run(start, timeout_s=280)
    running = Serving(loop, runtime, tmp_path_factory.mktemp("serving"))
    yield running
    for publisher in running.publishers:
        loop.run(publisher.close())
    loop.run(runtime.close())
    loop.close()
