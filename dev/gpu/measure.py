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
    """Return the GPU memory, in MiB, of this process and its descendants; 0 without a GPU.

    Where the driver tells no process's share, it is the memory in use by everybody.
    """
    import psutil

    this = psutil.Process()
    own = {this.pid, *(child.pid for child in this.children(recursive=True))}
    shares: list[tuple[int, int]] = []
    for line in _ask("--query-compute-apps=pid,used_memory", units=False):
        pid, _, share = line.partition(", ")
        if pid.isdigit() and share.isdigit():
            shares.append((int(pid), int(share)))
    total = sum(int(value) for value in _nvidia_smi("memory.used", units=False))
    if not shares:
        return total
    return sum(share for pid, share in shares if pid in own)


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result with the run's description beside it; may be called again as the result grows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**describe_run(), **result}, indent=1) + "\n", encoding="utf-8")


def _nvidia_smi(query: str, *, units: bool = True) -> list[str]:
    return _ask(f"--query-gpu={query}", units=units)


def _ask(query: str, *, units: bool) -> list[str]:
    command = ["nvidia-smi", query, "--format=csv,noheader" + ("" if units else ",nounits")]
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
