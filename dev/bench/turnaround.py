"""Shared mode: how long generation stands still around a training step, beside the training itself.

Requests are running all the while. "Pause" is from the call until the trainer may begin, "resume" from its end until
the engine generates again; the first token on the new step is measured from the end of training.
"""

from __future__ import annotations

import asyncio
import time

import httpx
from common import keep, spread
from engine import Stand, running

ROUNDS = 12
STREAMS = 8
TRAINING_S = 0.2  # stands for a training step; what is measured does not depend on it


async def generate(client: httpx.AsyncClient, stand: Stand, name: str, tokens: int) -> float:
    """Have tokens generated and return the time at which they were there."""
    body = {"model": name, "prompt": "say the word maybe", "max_tokens": tokens, "temperature": 1, "ignore_eos": True}
    (await client.post(f"{stand.runtime.base_url}/completions", json=body)).raise_for_status()
    return time.perf_counter()


async def keep_busy(client: httpx.AsyncClient, stand: Stand) -> None:
    """Generate without end."""
    while True:
        await generate(client, stand, f"bench@{stand.registry.served_step}", 64)


async def main() -> None:
    pause_s, resume_s, publish_s, first_token_s = [], [], [], []
    headers = {"Authorization": "Bearer default"}
    async with running("shared") as stand, httpx.AsyncClient(timeout=60, trust_env=False, headers=headers) as client:
        await stand.publisher.publish(0, stand.adapters[0])
        streams = [asyncio.create_task(keep_busy(client, stand)) for _ in range(STREAMS)]
        for step in range(1, ROUNDS + 1):
            await asyncio.sleep(0.3)
            asked = time.perf_counter()
            async with stand.runtime.yielded_to_trainer():
                pause_s.append(time.perf_counter() - asked)
                await asyncio.sleep(TRAINING_S)
                trained = time.perf_counter()
            resume_s.append(time.perf_counter() - trained)
            publishing = time.perf_counter()
            await stand.publisher.publish(step, stand.adapters[step % len(stand.adapters)])
            publish_s.append(time.perf_counter() - publishing)
            first_token_s.append(await generate(client, stand, f"bench@{step}", 1) - trained)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    still = spread([a + b for a, b in zip(pause_s, resume_s, strict=True)])
    ratio = still["median"] / TRAINING_S
    keep(
        "turnaround_shared",
        {
            "pause_s": spread(pause_s),
            "resume_s": spread(resume_s),
            "publish_s": spread(publish_s),
            "trained_to_first_token_s": spread(first_token_s),
            "training_s": TRAINING_S,
            "still_outside_training_s": still,
            "ratio_to_training": ratio,
        },
        f"outside training generation stands still for {still['median'] * 1e3:.0f} ms, {ratio:.2f} times a step of "
        f"{TRAINING_S} s; the first token on the new step comes {spread(first_token_s)['median'] * 1e3:.0f} ms "
        f"after it",
    )


if __name__ == "__main__":
    asyncio.run(main())
