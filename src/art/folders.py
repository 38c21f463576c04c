"""Folders that are written, replaced and removed as a whole. Paths and files only."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from pathlib import Path

_AT_WORKING_DIRECTORY = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM})


def put_in_place(staged: Path, target: Path, aside_prefix: str) -> None:
    """Give a folder its name, in place of the one that has it, if any, which is removed.

    A reader, or a kill, finds one of the two at any moment where the file system can exchange names. Elsewhere there is
    a moment with neither, and the old one comes back if the new one cannot be renamed.

    Args:
        staged: The new folder, on the same file system.
        target: Its name.
        aside_prefix: Begins the hidden name of the old one while it is removed.

    Raises:
        OSError: The file system refused; what was there is there.
    """
    if not target.exists():
        staged.rename(target)
        flush_directory(target.parent)
        return
    if exchange(staged, target):
        replaced = staged
    else:
        replaced = set_aside(target, aside_prefix)
        try:
            staged.rename(target)
        except BaseException:
            replaced.rename(target)
            raise
    flush_directory(target.parent)
    remove(replaced)


def exchange(first: Path, second: Path) -> bool:
    """Swap the names of two files or folders in one step; False where system or file system cannot.

    Raises:
        OSError: The file system refused for another reason.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = (os.fsencode(first), os.fsencode(second))
    if not rename(_AT_WORKING_DIRECTORY, names[0], _AT_WORKING_DIRECTORY, names[1], _RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


def set_aside(path: Path, prefix: str) -> Path:
    """Take a folder's name from it at once, so that a kill while it is removed leaves no half of it behind."""
    return path.rename(path.parent / f"{prefix}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def remove(path: Path) -> None:
    """Remove a folder, or a link to one, as far as that is possible."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def link_tree(source: Path, target: Path) -> None:
    """Fill a folder with hard links to another folder's files, or with copies where links are impossible."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        destination = target / path.relative_to(source)
        if path.is_dir():
            destination.mkdir(exist_ok=True)
            continue
        try:
            os.link(path, destination)
        except OSError:
            shutil.copy2(path, destination)


def flush_tree(folder: Path) -> None:
    """Flush every file and folder below `folder` to disk."""
    for root, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        flush_directory(Path(root))


def flush_directory(folder: Path) -> None:
    """Flush a folder's own entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
