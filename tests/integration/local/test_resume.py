"""A run that is stopped at any moment goes on from its newest complete checkpoint, with the very same weights."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art.checkpoints import checkpoints_dir, list_steps, newest_step
from tests.support.script_run import ScriptRun

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).parent / "scripts" / "resumable.py"
SAME_WEIGHTS_NATS = 1e-4
# Each signal in each stage, and each signal with the service in a child process and in a thread.
STOPS = [
    (signal.SIGINT, "sampling", "thread"),
    (signal.SIGTERM, "sampling", "child"),
    (signal.SIGKILL, "sampling", "thread"),
    (signal.SIGINT, "training", "child"),
    (signal.SIGTERM, "training", "thread"),
    (signal.SIGKILL, "training", "child"),
    (signal.SIGINT, "saving", "thread"),
    (signal.SIGTERM, "saving", "child"),
    (signal.SIGKILL, "saving", "thread"),
]


class Chain:
    """Runs of one model, each going on where the one before was stopped."""

    def __init__(self, base: Path, folder: Path) -> None:
        self._base = base
        self._folder = folder
        self.path = folder / "art"
        self.model_dir = self.path / "project" / "models" / "tiny"
        self.logprobs: dict[str, list[float]] = {}
        self.runs: list[ScriptRun] = []

    def start(self, mode: str, stage: str) -> tuple[ScriptRun, dict[str, Any]]:
        """Start the next run; it must take up the newest complete checkpoint, with the weights that it had."""
        newest = newest_step(self.model_dir) or 0
        folder = self._folder / f"run{len(self.runs)}"
        run = ScriptRun(SCRIPT, str(self.path), str(self._base), mode, stage, folder=folder)
        self.runs.append(run)
        registered = run.wait_for("registered")
        assert (registered["step"], registered["name"]) == (newest, f"tiny@{newest}")
        self._compare(registered)
        trained = run.wait_for("trained")
        assert trained["step"] > newest
        assert trained["name"] == f"tiny@{trained['step']}"
        assert trained["logprobs"] != pytest.approx(registered["logprobs"], abs=10 * SAME_WEIGHTS_NATS)
        self._compare(trained)
        return run, trained

    def _compare(self, event: dict[str, Any]) -> None:
        before = self.logprobs.setdefault(event["name"], event["logprobs"])
        assert event["logprobs"] == pytest.approx(before, abs=SAME_WEIGHTS_NATS)


@pytest.fixture(scope="module")
def chain(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    chain = Chain(tiny_base, tmp_path_factory.mktemp("resume"))
    yield chain
    for run in chain.runs:
        run.end()


@pytest.mark.parametrize(("sig", "stage", "mode"), STOPS, ids=[f"{s.name}-{stage}-{mode}" for s, stage, mode in STOPS])
def test_stopped_run_leaves_nothing_running_and_no_half_step(
    chain: Chain, sig: signal.Signals, stage: str, mode: str
) -> None:
    run, trained = chain.start(mode, stage)
    if stage == "sampling":
        run.wait_for("reached")
    else:
        run.wait_for("sampled")
        run.faults.order("loss" if stage == "training" else "saving", "wait", after=1 if stage == "training" else 0)
        run.faults.wait_reached()
    half_written = [*checkpoints_dir(chain.model_dir).glob(".staging-*/adapter_model.safetensors")]
    assert bool(half_written) == (stage == "saving")

    run.send(sig)
    if sig == signal.SIGINT:
        run.faults.go_on()

    assert run.wait_exit() == -sig
    run.expect_nothing_left()
    # A step whose saving had begun when an orderly end was asked for is finished; a half one is never taken.
    finished = trained["step"] + (1 if (stage, sig) == ("saving", signal.SIGINT) else 0)
    assert newest_step(chain.model_dir) == finished


def test_run_goes_on_past_what_looks_like_a_newer_step(chain: Chain) -> None:
    newest = newest_step(chain.model_dir)
    assert newest is not None
    broken = checkpoints_dir(chain.model_dir) / f"{newest + 3:04d}"
    broken.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        whole = (checkpoints_dir(chain.model_dir) / f"{newest:04d}" / name).read_bytes()
        (broken / name).write_bytes(whole[: len(whole) // 2])

    run, trained = chain.start("child", "nothing")

    assert trained["step"] == newest + 4  # no step number is used twice
    run.wait_for("finished")
    assert run.wait_exit() == 0
    run.expect_nothing_left()
    assert [path.name for path in checkpoints_dir(chain.model_dir).glob(".*")] == []
    assert list_steps(chain.model_dir) == sorted({0, *(int(name.split("@")[1]) for name in chain.logprobs)})
    assert not (chain.model_dir / "serving").exists()
