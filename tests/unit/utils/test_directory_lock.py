from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from art.errors import ConfigurationError
from art.utils.directory_lock import DirectoryLock
from tests.support.waiting import wait_until

HOLDER_CODE = """
import sys
from pathlib import Path
from art.utils.directory_lock import DirectoryLock
DirectoryLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER_CODE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_second_process_is_refused_and_told_who_holds_the_folder(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(ConfigurationError, match=f"in use by process {holder.pid}: one process at a time"):
        DirectoryLock(tmp_path).acquire()


def test_lock_of_a_killed_process_is_free(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait()
    DirectoryLock(tmp_path).acquire()
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()} {os.getppid()}\n"


def test_holder_whose_script_is_gone_is_waited_for(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    (tmp_path / ".lock").write_text(f"{holder.pid} {ended_pid()}\n")
    lock = DirectoryLock(tmp_path)
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive(), "the folder is still held"
    holder.kill()
    wait_until(lambda: not thread.is_alive())
    assert lock._descriptor is not None
    lock.release()


def test_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.acquire()
    with pytest.raises(ConfigurationError):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    second.release()
