"""Hold a folder for one process at a time."""

from __future__ import annotations

import os
import time
from pathlib import Path

from art.checkpoints import is_process_alive
from art.errors import ConfigurationError

ORPHAN_WAIT_S = 15.0  # a service whose script was killed is ended within two seconds, more on a busy machine
POLL_S = 0.1


class DirectoryLock:
    """An advisory lock on a folder, released when its holder ends, however it ends.

    Args:
        folder: Must exist; a file `.lock` in it is locked and names the holder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock. Blocks for seconds where the holder is about to end, its script being gone.

        Raises:
            ConfigurationError: Another process holds it, or the folder cannot be written.
        """
        import fcntl

        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as err:
            raise ConfigurationError(f"{self._path.parent} cannot be written: {err}; choose another path") from err
        deadline = time.monotonic() + ORPHAN_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as err:
                holder, starter = _read_holder(descriptor)
                if starter is not None and not is_process_alive(starter) and time.monotonic() < deadline:
                    time.sleep(POLL_S)
                    continue
                os.close(descriptor)
                raise ConfigurationError(
                    f"{self._path.parent} is in use by process {holder or 'unknown'}: one process at a time may "
                    "train a model; end that run, or use another model name, project or path"
                ) from err
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {os.getppid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _read_holder(descriptor: int) -> tuple[int | None, int | None]:
    """Return who holds the lock, and the process that started it."""
    numbers = [int(word) for word in os.pread(descriptor, 64, 0).split() if word.isdigit()]
    return (numbers[0] if numbers else None), (numbers[1] if len(numbers) > 1 else None)
