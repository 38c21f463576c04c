"""Stops and kills at random moments, twenty times in a row, in processes of their own with real files."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art.pipeline_trainer.state import SavedProgress
from tests.support.pipeline_launcher import EVAL_EVERY, SCENARIOS, read_notes
from tests.support.scripted_pipeline import ScriptedBackend
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
RUNS = 20
ENDS = [signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


class Launcher:
    """Starts runs over and over in the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pid = 0
        self._log = (folder / "log.txt").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.pipeline_launcher", str(folder)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )

    def start(self, seed: int) -> None:
        """Start a run and wait for its first rollout."""
        starts = len(read_notes(self.folder, "starts"))
        assert self._process.stdin is not None
        print(seed, file=self._process.stdin, flush=True)
        self.pid = int(self._read("started"))
        wait_until(lambda: len(read_notes(self.folder, "starts")) > starts)

    def wait(self) -> int:
        """Wait for the run's end; return its exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(int(self._read("ended")))

    def close(self) -> None:
        """End the launcher."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _read(self, word: str) -> str:
        assert self._process.stderr is not None
        seen = []
        for line in self._process.stderr:
            if line.startswith(f"{word} "):
                return line.split()[1]
            seen.append(line)
        raise AssertionError("".join(seen))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    running = Launcher(tmp_path)
    yield running
    running.close()


def check(folder: Path) -> SavedProgress:
    """Check that what is on disk accounts for every scenario; return what a resumed run starts from."""
    backend = ScriptedBackend(folder)
    trained = [offset for offsets in backend.trained().values() for offset in offsets]
    assert [offset for offset, count in Counter(trained).items() if count > 1] == []
    stored: Any = json.loads((folder / "pipeline/models/agent/state.json").read_text())
    saved = SavedProgress.from_json(stored["_pipeline_trainer"])
    assert backend.newest() in {saved.training_step, saved.batch_step}
    progress = saved.settled(backend.newest())
    handed_out = set(range(progress.scenario_offset))
    assert set(trained) | set(progress.unfinished_offsets) == handed_out
    assert set(trained) & set(progress.unfinished_offsets) == set()
    return progress


def test_no_scenario_is_lost_or_trained_twice_whatever_ends_the_run(launcher: Launcher) -> None:
    folder = launcher.folder
    seed = int(os.environ.get("ART_TEST_SEED") or time.time_ns() % 1_000_000)
    sys.stdout.write(f"ART_TEST_SEED={seed}\n")
    dice = random.Random(seed)
    for number in range(RUNS):
        launcher.start(seed + number)
        how, after_s = dice.choice(ENDS), dice.random() * 0.6
        deadline = time.monotonic() + after_s
        wait_until(lambda deadline=deadline: time.monotonic() >= deadline)  # type: ignore[misc]  # a random moment
        os.kill(launcher.pid, how)
        code = launcher.wait()
        assert code == (-how if how == signal.SIGKILL else 0)
        state_exists = (folder / "pipeline/models/agent/state.json").exists()
        step = check(folder).training_step if state_exists else 0
        sys.stdout.write(f"run {number}: {how.name} after {after_s:.3f} s, at step {step}\n")
    launcher.start(seed + RUNS)
    assert launcher.wait() == 0

    progress = check(folder)
    assert (progress.scenario_offset, progress.unfinished_offsets) == (SCENARIOS, ())
    assert progress.total_scenarios_consumed == SCENARIOS
    for entry in read_notes(folder, "starts") + read_notes(folder, "ends"):
        assert entry["name"] == f"agent@{entry['step']}"
    evaluations = read_notes(folder, "evaluations")
    assert all(entry["name"] == f"agent@{entry['step']}" for entry in evaluations)
    completed = progress.completed_eval_steps
    assert progress.pending_eval_steps == ()
    assert {entry["step"] for entry in read_notes(folder, "starts")} <= set(completed)
    assert set(completed) == {entry["step"] for entry in evaluations}
    assert all(1 <= later - step <= EVAL_EVERY for step, later in itertools.pairwise(completed))
    assert progress.training_step - completed[-1] < EVAL_EVERY
