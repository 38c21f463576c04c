"""Run a training script in a process of its own, follow its events, and see what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.census import is_listening, processes_in, shared_memory_of
from tests.support.faulty_service import FOLDER_VARIABLE, Faults
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
EVENTS_VARIABLE = "ART_TEST_EVENTS"
START_TIMEOUT_S = 240.0
TIDY_TIMEOUT_S = 15.0


def emit(event: str, **facts: Any) -> None:
    """Tell the test something; called by scripts."""
    with open(os.environ[EVENTS_VARIABLE], "a") as file:
        file.write(json.dumps({"event": event, **facts}) + "\n")


def wait_for_test() -> None:
    """Wait until the test lets the script go on; called by scripts."""
    wait_until((Path(os.environ[FOLDER_VARIABLE]) / "go_on").exists, START_TIMEOUT_S)


def _listen_to_interrupts() -> None:
    """Undo that a shell has what it runs in the background ignore interrupts: a script would never see one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class ScriptRun:
    """A running script.

    Args:
        source: Path of the script, or its text, which is then fed to the interpreter's standard input.
        arguments: For the script.
        folder: Gets the script's log and events, and is its working directory.
    """

    def __init__(self, source: Path | str, *arguments: str, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.faults = Faults(folder / "faults")
        self._events = folder / "events.jsonl"
        self._log = folder / "script.log"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        environment = {
            **os.environ,
            EVENTS_VARIABLE: str(self._events),
            FOLDER_VARIABLE: str(self.faults.folder),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TMPDIR": str(self.temporary),
        }
        is_file = isinstance(source, Path)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(source) if is_file else "-", *arguments],
                cwd=folder,
                env=environment,
                stdin=None if is_file else subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, as a shell gives to what runs in a terminal
                preexec_fn=_listen_to_interrupts,
            )
        if not is_file:
            assert self.process.stdin is not None
            self.process.stdin.write(str(source).encode())
            self.process.stdin.close()
        self._shared_memory: set[Path] = set()
        self._ports: set[int] = set()

    def events(self) -> list[dict[str, Any]]:
        """Return all events so far."""
        if not self._events.exists():
            return []
        return [json.loads(line) for line in self._events.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, event: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """Wait for an event and return it; a script that ends before is an error that shows its log."""
        deadline = time.monotonic() + timeout_s
        while True:
            has_ended = self.process.poll() is not None
            for found in self.events():
                if found["event"] == event:
                    self._note(found)
                    return found
            if has_ended or time.monotonic() > deadline:
                what = f"ended with {self.process.returncode}" if has_ended else f"took more than {timeout_s} s"
                raise AssertionError(f"the script {what} before {event!r}; events {self.events()}; log:\n{self.log()}")
            time.sleep(0.02)

    def wait_exit(self, timeout_s: float = 90.0) -> int:
        """Wait for the script's end and return its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the script did not end in {timeout_s} s; log:\n{self.log()}") from None

    def send(self, sig: signal.Signals) -> None:
        """Send a signal; an interrupt goes to the whole group, as from a terminal."""
        self._look()
        if sig == signal.SIGINT:
            os.killpg(self.process.pid, sig)
        else:
            self.process.send_signal(sig)

    def expect_nothing_left(self) -> None:
        """Check that no process, port or shared memory of the script's is left a moment after its end."""
        deadline = time.monotonic() + TIDY_TIMEOUT_S
        while left := self._left():
            assert time.monotonic() < deadline, f"left {TIDY_TIMEOUT_S} s after the end: {left}; log:\n{self.log()}"
            time.sleep(0.05)

    def end(self) -> None:
        """End whatever is left, for the clean-up of a failed test."""
        for pid in [*processes_in(self.folder)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def log(self) -> str:
        """Return the end of the script's log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])

    def _left(self) -> list[object]:
        processes = [f"process {pid} {title}" for pid, title in processes_in(self.folder).items()]
        memory = [path for path in self._shared_memory if path.exists()]
        return [*processes, *memory, *(f"port {port}" for port in self._ports if is_listening(port))]

    def _note(self, event: dict[str, Any]) -> None:
        if "url" in event:
            self._ports.add(int(event["url"].split(":")[2].split("/")[0]))
        self._look()

    def _look(self) -> None:
        self._shared_memory |= shared_memory_of([*processes_in(self.folder)])
