"""Hold a folder for one process at a time."""

from __future__ import annotations

import os
from pathlib import Path

from art.errors import ConfigurationError


class DirectoryLock:
    """An advisory lock on a folder, released when its holder ends, however it ends.

    Args:
        folder: Must exist; a file `.lock` in it is locked and names the holder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ConfigurationError: Another process holds it, or the folder cannot be written.
        """
        import fcntl

        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as err:
            raise ConfigurationError(f"{self._path.parent} cannot be written: {err}; choose another path") from err
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise ConfigurationError(
                f"{self._path.parent} is in use by process {holder or 'unknown'}: one process at a time may "
                f"train a model; "
                "end that run, or use another model name, project or path"
            ) from err
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
