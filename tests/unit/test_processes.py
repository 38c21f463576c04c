"""Children end with their parent, however it ends, and take along what they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from art.processes import ChildProcess, describe_exit, log_tail
from tests.support.waiting import is_running, wait_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]
# A child that starts a grandchild, tells its pid, and ignores being asked to end.
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)']);"
    "print(p.pid, flush=True); time.sleep(1000)",
]


def start(argv: list[str], tmp_path: Path) -> ChildProcess:
    return ChildProcess.start(argv, env=dict(os.environ), log_path=tmp_path / "child.log")


def grandchild_of(child: ChildProcess) -> int:
    wait_until(lambda: log_tail(child.log_path).strip().isdigit())
    return int(log_tail(child.log_path))


def test_exit_is_noticed_with_its_code(tmp_path: Path) -> None:
    child = start([sys.executable, "-c", "import sys; print('last words'); sys.exit(3)"], tmp_path)
    assert child.exited.result(timeout=10) == 3
    assert child.describe() == f"pid {child.pid} exited with code 3"
    assert log_tail(child.log_path) == "last words"
    child.stop()


def test_stopping_ends_a_stubborn_child_and_its_children(tmp_path: Path) -> None:
    child = start(STUBBORN, tmp_path)
    grandchild = grandchild_of(child)
    child.stop(grace_s=0.2)
    assert child.exit_code == -signal.SIGKILL
    assert not is_running(grandchild)


def test_suspended_child_is_described_and_can_be_stopped(tmp_path: Path) -> None:
    child = start(SLEEP, tmp_path)
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: "stopped by a signal" in child.describe())
    child.stop(grace_s=5.0)
    assert child.exit_code == -signal.SIGTERM


def test_killed_child_leaves_nothing_behind_though_nobody_stops_it(tmp_path: Path) -> None:
    child = start(STUBBORN, tmp_path)
    grandchild = grandchild_of(child)
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(grandchild), timeout_s=5.0)
    child.stop()


def test_killed_parent_takes_child_and_grandchild_along(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path; from art.processes import ChildProcess;"
        f"c = ChildProcess.start({STUBBORN!r}, env=dict(os.environ), log_path=Path(sys.argv[1]));"
        "print(c.pid, flush=True); time.sleep(1000)"
    )
    log_path = tmp_path / "grandchild.log"
    parent = subprocess.Popen([sys.executable, "-c", script, str(log_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_until(lambda: log_tail(log_path).strip().isdigit())
    grandchild = int(log_tail(log_path))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_running(child) and not is_running(grandchild), timeout_s=5.0)


def test_exit_codes_in_words() -> None:
    assert describe_exit(0) == "exited with code 0"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(None) == "running"
