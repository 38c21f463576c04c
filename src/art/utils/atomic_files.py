"""Write files so that a reader, or a crash, never meets half of one.

Every function writes under a temporary name in the target's own folder, flushes it to the disk, and moves it into place
in one step. Folders that are missing are made.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


def write_text(path: str | Path, text: str, *, mode: int | None = None) -> None:
    """Replace the file with this text, in UTF-8.

    Args:
        path: The file; a symbolic link is followed.
        text: What it shall hold.
        mode: Permission bits, such as 0o600; None leaves them to the process's umask.
    """
    write_bytes(path, text.encode("utf-8"), mode=mode)


def write_bytes(path: str | Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace the file with these bytes. Arguments as for `write_text`."""
    with replacing(path, mode=mode) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def replacing(path: str | Path, *, mode: int | None = None) -> Iterator[Path]:
    """Give a temporary file to write into; on leaving, it takes the place of `path`.

    If the block raises, the temporary file goes and `path` stays as it was.
    """
    target = Path(os.path.realpath(path))
    with _temporary_file(target, mode) as temporary:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    _flush_to_disk(target.parent)


def create_first_free(candidates: Iterable[Path], write: Callable[[Path], object]) -> Path:
    """Write a new file under the first of these names that no file has yet.

    Two processes that do this at once get two names.

    Args:
        candidates: Names to try in order, all in one folder.
        write: Writes the content to the path it is given.

    Returns:
        The name that the file got.
    """
    names = iter(candidates)
    target = next(names)
    with _temporary_file(target, None) as temporary:
        write(temporary)
        _flush_to_disk(temporary)
        while not _move_without_replacing(temporary, target):
            target = next(names)
    _flush_to_disk(target.parent)
    return target


@contextlib.contextmanager
def _temporary_file(target: Path, mode: int | None) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
    # Created here, with its final permissions, so that a secret is never readable for a moment.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if mode is None else mode))
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _move_without_replacing(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError:
        # Some file systems have no hard links; there the check and the move are two steps.
        if target.exists():
            return False
        os.replace(source, target)
    return True


def _flush_to_disk(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return  # Windows cannot open a folder; its renames are durable without this.
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
