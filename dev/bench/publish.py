"""Publishing a step, confirmed and probed, over the bare load call alone: `publish.py [shared|dedicated]`.

The bare call loads an adapter under a fresh name and does nothing else: no checks, no copy, no look at the model
list, no probe. What a probe costs is measured beside it.
"""

from __future__ import annotations

import asyncio
import sys
import time

from common import keep, spread
from engine import running

from art.inference.runtime import AdapterFiles
from art.probe import AdapterProbe

ROUNDS = 30


async def main(mode: str) -> None:
    publish_s, bare_s, probe_s = [], [], []
    async with running(mode) as stand:
        await stand.publisher.publish(0, stand.adapters[0])
        probe = AdapterProbe.read(stand.adapters[0])
        assert probe is not None
        for step in range(1, ROUNDS + 1):
            source = stand.adapters[step % len(stand.adapters)]
            started = time.perf_counter()
            await stand.publisher.publish(step, source)
            publish_s.append(time.perf_counter() - started)
            started = time.perf_counter()
            await stand.runtime.load_adapter(AdapterFiles(step, f"bare@{step}", source))
            bare_s.append(time.perf_counter() - started)
            await stand.runtime.unload_adapter(f"bare@{step}")
            started = time.perf_counter()
            await stand.publisher._client.score(f"bench@{step}", probe.token_ids, probe.positions)
            probe_s.append(time.perf_counter() - started)
    publish, bare, probing = spread(publish_s), spread(bare_s), spread(probe_s)
    ratio = publish["median"] / bare["median"]
    to_both = publish["median"] / (bare["median"] + probing["median"])
    keep(
        f"publish_{mode}",
        {
            "publish_s": publish,
            "bare_load_s": bare,
            "probe_s": probing,
            "ratio_to_bare_load": ratio,
            "ratio_to_bare_load_and_probe": to_both,
        },
        f"publishing takes {ratio:.1f} times the bare load call ({publish['median'] * 1e3:.0f} ms against "
        f"{bare['median'] * 1e3:.0f} ms), {to_both:.2f} times load and probe together",
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "shared"))
