"""Forty steps on one dedicated server with two adapter slots: load time, memory and disk must not grow."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path

from common import keep, spread
from engine import running

from art.inference.supervised import SupervisedRuntime

STEPS = 40
TENTH = STEPS // 4


def group_memory_mb(leader: int) -> float:
    """Return the memory of a process group, shared pages counted once each process's share (PSS), in MB."""
    total_kb = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) != leader:
                continue
            for line in (folder / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total_kb += int(line.split()[1])
        except (OSError, ProcessLookupError):
            continue
    return total_kb / 1024


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def main() -> None:
    publish_s, memory_mb, disk_bytes = [], [], []
    async with running("dedicated", adapters=6, live=4) as stand:
        assert isinstance(stand.runtime, SupervisedRuntime)
        serving = next(iter(stand.registry._folder.parents))
        for step in range(STEPS):
            started = time.perf_counter()
            await stand.publisher.publish(step, stand.adapters[step % len(stand.adapters)])
            publish_s.append(time.perf_counter() - started)
            memory_mb.append(group_memory_mb(stand.runtime.process.pid))
            disk_bytes.append(folder_bytes(serving))
        live = len(stand.registry.live)
    warm = slice(TENTH, 2 * TENTH)  # after the first steps, which fill the engine's adapter cache
    growth = {
        name: statistics.median(values[-TENTH:]) / statistics.median(values[warm])
        for name, values in (("publish", publish_s), ("memory", memory_mb), ("disk", disk_bytes))
    }
    keep(
        "forty_steps_dedicated",
        {
            "steps": STEPS,
            "live_adapters": live,
            "publish_s": spread(publish_s),
            "memory_mb": {"first": memory_mb[0], "last": memory_mb[-1]},
            "served_files_bytes": {"step_10": disk_bytes[TENTH], "last": disk_bytes[-1]},
            "growth_last_ten_over_second_ten": growth,
        },
        f"over {STEPS} steps with two slots, the last ten over the second ten: time to publish "
        f"x{growth['publish']:.2f}, "
        f"memory x{growth['memory']:.2f}, served files x{growth['disk']:.2f}; {live} adapters live at the end",
    )


if __name__ == "__main__":
    asyncio.run(main())
