"""Numbers that the pages give by hand are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from art import env
from art.cli import app
from art.dev.settings import ServingSettings
from art.inference.confirm import GAP_LIMITS_NATS
from art.inference.monitor import RECHECK_S
from art.inference.publish import CONFIRM_LIMIT_S
from art.model.openai_client import CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from art.pipeline_trainer.trainer import STALL_TIMEOUT_S

ROOT = Path(__file__).resolve().parents[3]
SERVING = ServingSettings()


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(text: str) -> dict[str, str]:
    """Return the first two cells of every row of a page's tables."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in cells}


def test_limits_on_waiting() -> None:
    given = rows(page("docs/fault-handling.md"))
    engine_s = re.search(r"^ENGINE_ANSWER_S = ([\d.]+)$", page("src/art/vllm/in_process.py"), re.MULTILINE)
    assert engine_s is not None
    expected = {
        "a server's start": f"{env.SERVER_TIMEOUT_S.default:g} s shared, "
        f"{env.DEDICATED_SERVER_TIMEOUT_S.default:g} s dedicated",
        "loading an adapter, retries included (dedicated)": f"{SERVING.adapter_reload_timeout_s:g} s",
        "confirming a loaded adapter through connection faults": f"{CONFIRM_LIMIT_S:g} s",
        "a health check's token": f"{SERVING.health_timeout_s:g} s",
        "between health checks": f"{SERVING.health_interval_s:g} s; {RECHECK_S:g} s after a failed one",
        'running requests before training (shared, `pause_mode` "wait")': f"{SERVING.pause_timeout_s:g} s, "
        "then they are held",
        "the engine's answer to pause, sleep, wake or a load (shared)": f"{float(engine_s[1]):g} s, "
        "then it counts as hung",
        "a rollout's request while the server is away": f"{SERVING.rollout_wait_s:g} s",
        "a rollout's request that is being answered": f"{READ_TIMEOUT_S:g} s without a byte, "
        f"{CONNECT_TIMEOUT_S:g} s to connect",
        "a whole rollout": f"{env.ROLLOUT_TIMEOUT_S.default / 3600:g} h",
        "a pipeline without progress": f"{STALL_TIMEOUT_S / 60:g} min",
    }
    assert {what: given.get(what) for what in expected} == expected


def test_defaults_of_serving_in_the_readme() -> None:
    given = rows(page("README.md"))
    assert given["`inference_restarts`, `restart_window_s`"] == (
        f"{SERVING.inference_restarts} in {SERVING.restart_window_s:g} s"
    )
    assert given["`adapter_reload_timeout_s`"].startswith(f"{SERVING.adapter_reload_timeout_s:g} ")
    assert given["`server_start_timeout_s`"].startswith(f"{env.SERVER_TIMEOUT_S.default:g} shared")
    assert f"{env.DEDICATED_SERVER_TIMEOUT_S.default:g} dedicated" in given["`server_start_timeout_s`"]
    assert given["`health_interval_s`, `health_timeout_s`"].startswith(
        f"{SERVING.health_interval_s:g}, {SERVING.health_timeout_s:g} "
    )
    assert given["`rollout_wait_s`"] == f"{SERVING.rollout_wait_s:g}"
    assert given["`max_live_adapters`"] == str(SERVING.max_live_adapters)
    assert given["`pause_mode`, `pause_timeout_s`"] == f"by device, {SERVING.pause_timeout_s:g}"


def test_limits_of_the_probe() -> None:
    text = " ".join(page("docs/reference/configuration.md").split())
    assert (
        f"the limit is {GAP_LIMITS_NATS['float32']:g} nats where trainer and engine compute in float32, "
        f"{GAP_LIMITS_NATS['bfloat16']:g} in bfloat16 or float16, and {GAP_LIMITS_NATS['quantized']:.1f} where"
    ) in text
    assert GAP_LIMITS_NATS["float16"] == GAP_LIMITS_NATS["bfloat16"]


def test_every_command_is_named() -> None:
    given = rows(page("docs/getting-started.md"))
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert sorted(key.split()[1].rstrip("`") for key in given if key.startswith("`art ")) == sorted(names)
