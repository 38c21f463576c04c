"""What the GPUs of a model cost by the hour."""

from __future__ import annotations

import shutil
import subprocess

from art import dev

H200_USD_PER_HOUR = 3.0
QUERY_TIMEOUT_S = 10.0


def gpu_cost_per_hour_usd(config: dev.InternalModelConfig | None, price_usd: float | None) -> float | None:
    """Return the hourly price of all GPUs that a model uses; None when it is unknown.

    Args:
        config: The model's configuration; its GPU ids are counted, else all GPUs of the machine.
        price_usd: Price of one GPU; None is known for machines that have H200s only.
    """
    names = visible_gpu_names()
    if price_usd is None:
        if not names or not all("H200" in name for name in names):
            return None
        price_usd = H200_USD_PER_HOUR
    ids = {*(config or {}).get("trainer_gpu_ids", []), *(config or {}).get("inference_gpu_ids", [])}
    return price_usd * (len(ids) or len(names))


def visible_gpu_names() -> list[str]:
    """Return the names of the machine's NVIDIA GPUs, without loading CUDA into this process."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        listing = subprocess.run(  # noqa: S603 - a fixed command line
            [command, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in listing.stdout.splitlines() if line.strip()] if listing.returncode == 0 else []
