"""What every measurement on a GPU notes: the device, the versions, the command; and the memory that is in use."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "vllm", "transformers", "peft", "unsloth", "bitsandbytes")


def describe_run() -> dict[str, Any]:
    """Say where and with what a measurement is made."""
    return {
        "device": _nvidia_smi("name") or ["none"],
        "driver": _nvidia_smi("driver_version"),
        "python": sys.version.split()[0],
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "command": shlex.join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
    }


def used_mib() -> int:
    """Return the memory in use on all GPUs, in MiB, whoever uses it; 0 without a GPU."""
    return sum(int(value) for value in _nvidia_smi("memory.used", units=False))


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result with the run's description beside it; may be called again as the result grows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**describe_run(), **result}, indent=1) + "\n", encoding="utf-8")


def _nvidia_smi(query: str, *, units: bool = True) -> list[str]:
    layout = "csv,noheader" + ("" if units else ",nounits")
    command = ["nvidia-smi", f"--query-gpu={query}", f"--format={layout}"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in listing.stdout.splitlines() if line.strip()]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
