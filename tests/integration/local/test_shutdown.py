"""However a script ends, nothing of it is left: no process, thread, port or memory. (Signals: test_resume.py.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.script_run import ScriptRun

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "scripts" / "careless.py"
EXIT_TIMEOUT_S = 30.0  # closing takes seconds; a script that hangs at its end hangs for good
THREADS_OF_OTHERS = {"tqdm_monitor"}  # daemons that a library keeps for the life of the process

Start = Callable[..., ScriptRun]


@pytest.fixture
def start(tiny_base: Path, tmp_path: Path) -> Iterator[Start]:
    runs: list[ScriptRun] = []

    def start_script(mode: str, ending: str, *, from_stdin: bool = False) -> ScriptRun:
        folder = tmp_path / f"run{len(runs)}"
        source = SCRIPT.read_text() if from_stdin else SCRIPT
        run = ScriptRun(source, str(folder / "art"), str(tiny_base), mode, ending, folder=folder)
        runs.append(run)
        return run

    yield start_script
    for run in runs:
        run.end()


def expect_end(run: ScriptRun, exit_code: int) -> None:
    assert run.wait_exit(EXIT_TIMEOUT_S) == exit_code, run.log()
    run.expect_nothing_left()
    assert list(run.temporary.iterdir()) == []


def test_two_scripts_at_once_end_each_for_itself(start: Start) -> None:
    patient = start("child", "waits")
    failing = start("thread", "raises", from_stdin=True)
    for run in (patient, failing):
        trained = run.wait_for("trained")
        assert (trained["step"], trained["name"]) == (1, "tiny@1")
        assert "tiny@1" in trained["listed"]
    expect_end(failing, 1)
    assert 'KeyError: "the script\'s own mistake"' in failing.log()
    patient.faults.go_on()
    assert patient.wait_for("trained again")["changed"]
    expect_end(patient, 0)
    assert set(patient.wait_for("threads")["left"]) <= THREADS_OF_OTHERS


@pytest.mark.parametrize("mode", ["child", "thread"])
def test_script_that_never_closes_its_backend_ends_all_the_same(start: Start, mode: str) -> None:
    run = start(mode, "never closes", from_stdin=mode == "child")
    run.wait_for("trained")
    expect_end(run, 0)


def test_backend_in_this_process_leaves_no_thread(start: Start) -> None:
    run = start("thread", "closes twice")
    run.wait_for("threads")
    expect_end(run, 0)
    assert set(run.wait_for("threads")["left"]) <= THREADS_OF_OTHERS
