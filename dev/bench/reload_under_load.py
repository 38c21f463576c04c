"""Answers per second with 16 rollouts in flight and a new adapter each second, old checkpoints deleted, beside a bare
server on which nothing is deleted. Two slots; names up to four steps old are asked for.

A bare server on which the old checkpoints are deleted does not finish: its engine dies at the third or fourth step.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
from common import keep
from engine import Stand, running

from art.inference.gate import ServingGate
from art.inference.rollout_transport import RolloutTransport
from art.inference.runtime import AdapterFiles

STREAMS = 16
OLDEST = 4
LIVE = 6


def delete_all_but(newest: Path) -> None:
    """Delete the other checkpoints, as a script does that keeps the newest only."""
    for folder in newest.parent.iterdir():
        if folder != newest:
            shutil.rmtree(folder)


async def measure(stand: Stand, *, ours: bool, seconds: float, name: str) -> dict[str, float]:
    """Roll out for a while and return what was answered."""
    statuses: Counter[int] = Counter()
    newest = 0
    rng = random.Random(0)
    done = asyncio.Event()

    async def publish(step: int, folder: Path) -> None:
        source = folder / f"{step:04d}"
        shutil.copytree(stand.adapters[step % len(stand.adapters)], source)
        if ours:
            await stand.publisher.publish(step, source)
            delete_all_but(source)
        else:
            await stand.runtime.load_adapter(AdapterFiles(step, f"{name}@{step}", source))

    async def roll_out(client: httpx.AsyncClient) -> None:
        while not done.is_set():
            body = {
                "model": f"{name}@{max(0, newest - rng.randint(0, OLDEST))}",
                "messages": [{"role": "user", "content": "say the word " * 12}],
                "max_tokens": rng.choice([32, 128, 400]),
                "temperature": 1.0,
                "ignore_eos": True,
            }
            response = await client.post(f"{stand.runtime.base_url}/chat/completions", json=body)
            statuses[response.status_code] += 1

    headers = {"Authorization": "Bearer default"}
    limits = httpx.Limits(max_connections=64)
    transport = RolloutTransport(ServingGate(), wait_s=60, limits=limits) if ours else None
    with tempfile.TemporaryDirectory() as folder:
        async with httpx.AsyncClient(timeout=120, trust_env=False, headers=headers, transport=transport) as client:
            await publish(0, Path(folder))
            started = time.perf_counter()
            streams = [asyncio.create_task(roll_out(client)) for _ in range(STREAMS)]
            while time.perf_counter() - started < seconds:
                await asyncio.sleep(1.0)
                await publish(newest + 1, Path(folder))
                newest += 1
            done.set()
            await asyncio.gather(*streams)
            took_s = time.perf_counter() - started
    failed = sum(count for status, count in statuses.items() if status != 200)
    return {"steps": newest, "answered": statuses[200], "failed": failed, "answers_per_s": statuses[200] / took_s}


async def main(seconds: float) -> None:
    results: dict[str, list[dict[str, float]]] = {"bare": [], "ours": []}
    for _ in range(2):
        for way in results:
            async with running("dedicated", adapters=4, live=LIVE) as stand:
                results[way].append(await measure(stand, ours=way == "ours", seconds=seconds, name="bench"))
    speed = {way: sum(run["answers_per_s"] for run in runs) / len(runs) for way, runs in results.items()}
    ratio = speed["ours"] / speed["bare"]
    failed = sum(run["failed"] for run in results["ours"])
    keep(
        "reload_under_load",
        {"seconds_each": seconds, "runs": results, "answers_per_s": speed, "ratio": ratio},
        f"{ratio:.2f} times the answers per second of a bare server without deletions, {failed:.0f} requests failed",
    )


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 35.0))
