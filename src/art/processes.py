"""Start, watch and end child processes: the one helper for every child of this package.

A child has a session and process group of its own, so that what it starts can be ended with it. A tiny watchdog
process ends the group when the parent is gone or when the child itself is gone and left others behind: neither
`kill -9` of the parent nor of the child leaves anything running. Only processes that were started here are ever
signalled, by id.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

logger = logging.getLogger(__name__)

STOP_GRACE_S = 15.0  # an engine that is asked to stop needs 2 to 5 s, more when it is busy
KILL_LIMIT_S = 10.0  # a process that SIGKILL does not end hangs in the kernel
GROUP_DRAIN_S = 2.0  # helpers of a gone leader (such as a resource tracker) may tidy up this long

_WATCHDOG_CODE = """
import os, select, signal, sys, time
parent, leader, grace = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
signal.signal(signal.SIGINT, signal.SIG_IGN)
def group_alive():
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
def end(sig):
    try:
        os.killpg(leader, sig)
    except (ProcessLookupError, PermissionError):
        pass
def drain(seconds):
    deadline = time.monotonic() + seconds
    while group_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
try:
    parent_fd = os.pidfd_open(parent)
    leader_fd = os.pidfd_open(leader)
    if os.getppid() == parent:
        ready, _, _ = select.select([parent_fd, leader_fd], [], [])
    else:
        ready = [parent_fd]
    parent_gone = parent_fd in ready
except (AttributeError, ProcessLookupError, OSError):
    while os.getppid() == parent and group_alive():
        time.sleep(0.2)
    parent_gone = os.getppid() != parent
if parent_gone:
    end(signal.SIGTERM); end(signal.SIGCONT)
drain(grace)
end(signal.SIGKILL)
"""


class ChildProcess:
    """A running child in a process group of its own.

    Attributes:
        pid: Its id, which is its group's id too.
        argv: Its command line.
        log_path: Where its output goes.
        exited: Resolves with the exit code (negative for a signal) within milliseconds of its end.
    """

    def __init__(self, process: subprocess.Popen[bytes], argv: Sequence[str], log_path: Path) -> None:
        self._process = process
        self.pid = process.pid
        self.argv = list(argv)
        self.log_path = log_path
        self.exited: Future[int] = Future()
        self.exited.set_running_or_notify_cancel()  # whoever stops waiting for it must not cancel it for the others
        self.stop_requested = False
        self._owner = os.getpid()
        self._exited_here: asyncio.Future[int] | None = None
        try:
            self._watchdog = _start_watchdog(process.pid)
        except BaseException:
            process.kill()
            process.wait()
            raise
        _living.add(self)
        threading.Thread(target=self._wait, name=f"art-wait-{self.pid}", daemon=True).start()

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log_path: Path,
        pass_fds: Sequence[int] = (),
        cwd: Path | None = None,
    ) -> ChildProcess:
        """Start a child whose output goes to a file.

        Args:
            argv: Command line.
            env: The child's whole environment.
            log_path: Appended to; its folder must exist.
            pass_fds: Descriptors that the child inherits.
            cwd: Working directory; the parent's when None.
        """
        with log_path.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - the command line is ours
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
                cwd=cwd,
            )
        return cls(process, argv, log_path)

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.exited.result() if self.exited.done() else None

    @property
    def is_running(self) -> bool:
        """Whether the child has not ended yet."""
        return not self.exited.done()

    def exited_here(self) -> asyncio.Future[int]:
        """Return `exited` as a future of the running event loop, the same one at each call; not to be cancelled."""
        if self._exited_here is None or self._exited_here.get_loop() is not asyncio.get_running_loop():
            self._exited_here = asyncio.wrap_future(self.exited)
        return self._exited_here

    def describe(self) -> str:
        """Say how the child is: running, stopped by a signal, exited, killed."""
        if self.is_running:
            return f"pid {self.pid} running{' (stopped by a signal)' if _is_suspended(self.pid) else ''}"
        return f"pid {self.pid} {describe_exit(self.exit_code)}"

    def terminate(self) -> None:
        """Ask the child to end; do not wait."""
        self.stop_requested = True
        self._process.send_signal(signal.SIGTERM)

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask the child to end, wait, then end its whole group. Blocks up to `grace_s` and a little more."""
        self.stop_requested = True
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)
            self._wait_until(time.monotonic() + grace_s)
        self.kill_group()

    def kill_group(self) -> None:
        """End the child at once, and then what is left of its group; wait until all are gone. Safe to call twice.

        Those that a child leaves behind may tidy up first: Python's resource tracker deletes its semaphores.
        """
        self.stop_requested = True
        if self not in _living:
            return  # the group's number may be somebody else's by now
        if self.is_running:
            self._process.kill()
            self._wait_until(time.monotonic() + KILL_LIMIT_S)
        if not self.is_running:
            _signal_group(self.pid, signal.SIGCONT)
            self._wait_for_group(GROUP_DRAIN_S)
        _signal_group(self.pid, signal.SIGKILL)
        self._wait_for_group(KILL_LIMIT_S)
        self._watchdog.terminate()
        self._watchdog.wait()
        _living.discard(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process started it, and not one that this process was forked from."""
        return self._owner == os.getpid()

    def _wait(self) -> None:
        code = self._process.wait()
        if not self.stop_requested:
            logger.debug("child ended: pid=%d %s", self.pid, describe_exit(code))
        self.exited.set_result(code)
        self._watchdog.wait()  # it ends what the child left behind, then itself

    def _wait_for_group(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while _is_group_alive(self.pid) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _wait_until(self, deadline: float) -> None:
        try:
            self.exited.result(timeout=max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            return


def describe_exit(exit_code: int | None) -> str:
    """Put an exit code into words: `exited with code 3`, `killed by SIGKILL`."""
    if exit_code is None:
        return "running"
    if exit_code < 0:
        try:
            return f"killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"killed by signal {-exit_code}"
    return f"exited with code {exit_code}"


def log_tail(path: Path, lines: int = 20, max_bytes: int = 32_768) -> str:
    """Return the last lines of a log file, or an empty text where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


_living: weakref.WeakSet[ChildProcess] = weakref.WeakSet()


def _end_all_at_exit() -> None:
    children = [child for child in _living if child.is_ours]
    for child in children:
        child.terminate()
    for child in children:
        child.stop(grace_s=5.0)


atexit.register(_end_all_at_exit)


def _start_watchdog(leader: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own code
        [sys.executable, "-I", "-S", "-c", _WATCHDOG_CODE, str(os.getpid()), str(leader), str(GROUP_DRAIN_S)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _is_group_alive(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _has_running_member(pgid)


def _has_running_member(pgid: int) -> bool:
    """Look whether a group is more than zombies, which stay for good where nobody collects orphans (containers)."""
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return True  # no such file system: all that is known is that the group exists
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        state, _, group = stat.rpartition(")")[2].split()[:3]
        if int(group) == pgid and state not in {"Z", "X"}:
            return True
    return False


def _signal_group(pgid: int, sig: signal.Signals) -> None:
    try:
        os.killpg(pgid, sig)
    except (ProcessLookupError, PermissionError):
        return


def _is_suspended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in {"T", "t"}
