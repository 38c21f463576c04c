"""Children end with their parent, however it ends, and take along what they started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def test_exit_is_noticed_though_somebody_stopped_waiting_for_it(tmp_path: Path) -> None:
    async def wait_and_give_up(child: ChildProcess) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(child.exited), 0.01)

    child = start(SLEEP, tmp_path)
    asyncio.run(wait_and_give_up(child))
    assert child.is_running
    os.kill(child.pid, signal.SIGKILL)
    assert child.exited.result(timeout=5) == -signal.SIGKILL
    child.stop()


def test_zombies_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose first process collects no orphans."""
    code = (
        "import os, signal, time\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0)\n"  # a zombie in the group for as long as its parent lives
        "os.setpgid(0, 0)\n"  # and the parent leaves the group
        "print(pid, flush=True); time.sleep(1000)"
    )
    child = start(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"], tmp_path
    )
    zombie = grandchild_of(child)
    runner = int(Path(f"/proc/{zombie}/stat").read_text().rpartition(")")[2].split()[1])
    monkeypatch.setattr("art.processes.GROUP_DRAIN_S", 60.0)
    began = time.monotonic()
    try:
        child.kill_group()
    finally:
        os.kill(runner, signal.SIGKILL)
    assert time.monotonic() - began < 5.0


def test_ended_group_is_never_signalled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = start(SLEEP, tmp_path)
    child.kill_group()
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("the number may be somebody else's"))
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("the number may be somebody else's"))
    child.terminate()
    child.stop()
    child.kill_group()


def test_forked_copy_leaves_the_children_alone(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from art.processes import ChildProcess\n"
        f"c = ChildProcess.start({SLEEP!r}, env=dict(os.environ), log_path=Path(sys.argv[1]))\n"
        "if os.fork() == 0: sys.exit(0)\n"  # runs the exit hooks
        "os.wait(); print(c.is_running, flush=True)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")], capture_output=True, text=True, timeout=30
    )
    assert run.stdout.strip() == "True"


def test_child_without_watchdog_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = []

    def refuse(leader: int) -> None:
        pids.append(leader)
        raise OSError("no more processes")

    monkeypatch.setattr("art.processes._start_watchdog", refuse)
    with pytest.raises(OSError, match="no more processes"):
        start(SLEEP, tmp_path)
    assert not is_running(pids[0])


def test_a_hung_child_that_is_killed_leaves_no_semaphore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art.processes.GROUP_DRAIN_S", 60.0)  # however busy the machine is
    code = (
        "import multiprocessing, time; lock = multiprocessing.get_context('spawn').Lock();"
        "print(lock._semlock.name, flush=True); time.sleep(1000)"
    )
    child = start([sys.executable, "-c", code], tmp_path)
    wait_until(lambda: log_tail(child.log_path).startswith("/mp-"))
    semaphore = Path("/dev/shm") / f"sem.{log_tail(child.log_path).strip()[1:]}"
    assert semaphore.exists()
    os.killpg(child.pid, signal.SIGSTOP)
    child.kill_group()
    assert child.exit_code == -signal.SIGKILL
    assert not semaphore.exists()
