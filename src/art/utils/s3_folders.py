"""Keep a folder and a prefix of a bucket alike: several files at once, each whole or not there at all. Blocks."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from art.errors import S3SyncError
from art.utils import atomic_files
from art.utils.s3_bucket import FILES_AT_ONCE, Bucket, FileDigests, Progress, RemoteFile

logger = logging.getLogger(__name__)

# Given the name of a file below the folder: whether it is meant.
Selection = Callable[[str], bool]
# Given a file that is about to be sent: what to send in its place.
Rewrite = Callable[[Path], bytes | None]


@dataclass(frozen=True)
class Transfer:
    """One file to move: its size, and the function that moves it, told where to report bytes."""

    name: str
    size_bytes: int
    move: Callable[[Progress], None]


@dataclass
class Transfers:
    """Runs transfers, shows how far they are, and can be stopped from another thread.

    Attributes:
        verbose: Log every file.
    """

    verbose: bool = False
    moved: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Have the transfers that run, and those to come, end with an error."""
        self._stop.set()

    def run(self, title: str, transfers: list[Transfer]) -> None:
        """Move files, several at once. After the first failure no other is begun.

        Raises:
            S3SyncError: One of them failed, or all were stopped.
        """
        with self._progress(title, transfers) as progress, ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            running = {pool.submit(self._move, transfer, progress): transfer for transfer in transfers}
            try:
                done, _ = wait(running, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            finally:
                for future in running:
                    future.cancel()
        self.moved += len(transfers)

    def _move(self, transfer: Transfer, progress: Progress) -> None:
        transfer.move(progress)
        logger.log(logging.INFO if self.verbose else logging.DEBUG, "moved: %s", transfer.name)

    @contextmanager
    def _progress(self, title: str, transfers: list[Transfer]) -> Iterator[Progress]:
        bar: Any = None
        if sys.stderr.isatty() and transfers:
            from tqdm import tqdm

            total = sum(transfer.size_bytes for transfer in transfers)
            bar = tqdm(total=total, desc=title, unit="B", unit_scale=True, leave=False, file=sys.stderr)

        def advance(moved_bytes: int) -> None:
            if self._stop.is_set():
                raise S3SyncError(f"{title} was cancelled", bucket="")
            if bar is not None:
                bar.update(moved_bytes)

        try:
            advance(0)
            yield advance
        finally:
            if bar is not None:
                bar.close()


def files_below(bucket: Bucket, prefix: str) -> dict[str, RemoteFile]:
    """List what lies below a prefix that ends with "/", by the name below it.

    Raises:
        S3SyncError: The bucket cannot be listed, or a name would lead out of a folder.
    """
    files = {}
    for remote in bucket.list(prefix):
        name = remote.key.removeprefix(prefix)
        if not name or name.endswith("/"):
            continue  # what consoles make to show an empty folder
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\\" in name or str(PurePosixPath(name)) != name:
            raise S3SyncError(
                f"{bucket.url(remote.key)} cannot become a file: its name would lead elsewhere; delete it",
                bucket=bucket.name,
                key=remote.key,
            )
        files[name] = remote
    return files


def send_folder(
    folder: Path,
    bucket: Bucket,
    prefix: str,
    transfers: Transfers,
    *,
    selection: Selection,
    delete: bool = False,
    rewrite: Rewrite | None = None,
) -> None:
    """Send a folder's files that the bucket does not have, or has otherwise. What changes meanwhile is sent as it was.

    Args:
        folder: Where they are.
        bucket: Where they go.
        prefix: Below which prefix, ending with "/".
        transfers: Moves them.
        selection: Which files are meant.
        delete: Delete what is meant in the bucket and is not in the folder.
        rewrite: Gives other content for some files.
    """
    there = files_below(bucket, prefix)
    here = {name: path for name, path in local_files(folder).items() if selection(name)}
    with tempfile.TemporaryDirectory(prefix="art-s3-") as scratch:

        def send(name: str) -> Callable[[Progress], None]:
            return lambda progress: _send_copy(
                here[name], bucket, prefix + name, scratch, there, name, rewrite, progress
            )

        transfers.run(
            f"to {bucket.url(prefix)}",
            [Transfer(name, path.stat().st_size, send(name)) for name, path in here.items()],
        )
    if delete:
        bucket.delete(remote.key for name, remote in there.items() if selection(name) and name not in here)


def fetch_folder(
    bucket: Bucket,
    prefix: str,
    folder: Path,
    transfers: Transfers,
    *,
    selection: Selection,
    delete: bool = False,
    modes: Mapping[str, int] | None = None,
) -> None:
    """Fetch what lies below a prefix and is not in the folder, or is otherwise there.

    Args:
        bucket: Where files are.
        prefix: Below which prefix, ending with "/".
        folder: Where they go.
        transfers: Moves them.
        selection: Which files are meant.
        delete: Delete what is meant in the folder and is not in the bucket.
        modes: Permission bits of some files.
    """
    there = {name: remote for name, remote in files_below(bucket, prefix).items() if selection(name)}

    def fetch(name: str, remote: RemoteFile) -> Transfer:
        mode = (modes or {}).get(name)
        return Transfer(
            name,
            remote.size_bytes,
            lambda progress: fetch_file(bucket, remote, folder / name, progress=progress, mode=mode),
        )

    wanted = [(name, remote) for name, remote in there.items() if not is_same(folder / name, bucket, remote)]
    transfers.run(f"from {bucket.url(prefix)}", [fetch(name, remote) for name, remote in wanted])
    if delete:
        for name, path in local_files(folder).items():
            if selection(name) and name not in there:
                path.unlink(missing_ok=True)


def fetch_file(
    bucket: Bucket, remote: RemoteFile, path: Path, *, progress: Progress | None = None, mode: int | None = None
) -> None:
    """Fetch one file; whoever reads it meanwhile finds the old one, or none."""
    with atomic_files.replacing(path, mode=mode) as temporary:
        bucket.download(remote.key, temporary, progress=progress)
        if mode is not None:
            temporary.chmod(mode)  # the library puts a file of its own there


def local_files(folder: Path) -> dict[str, Path]:
    """List a folder's files by their name below it, without hidden and temporary ones."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(".") for part in parts):
            found["/".join(parts)] = path
    return found


def is_same(path: Path, bucket: Bucket, remote: RemoteFile) -> bool:
    """Tell whether a local file has the content of an object."""
    try:
        if path.stat().st_size != remote.size_bytes:
            return False
        digests = FileDigests.of(path)
    except OSError:
        return False
    return digests.etag == remote.etag or digests.sha256 == bucket.stored_digest(remote.key)


def _send_copy(
    path: Path,
    bucket: Bucket,
    key: str,
    scratch: str,
    there: Mapping[str, RemoteFile],
    name: str,
    rewrite: Rewrite | None,
    progress: Progress,
) -> None:
    with tempfile.NamedTemporaryFile(dir=scratch) as copy:
        copied = Path(copy.name)
        content = None if rewrite is None else rewrite(path)
        if content is not None:
            copied.write_bytes(content)
        else:
            try:
                shutil.copyfile(path, copied)
            except FileNotFoundError:
                logger.info("not sent, since it is gone: %s", path)
                return
        if name in there and is_same(copied, bucket, there[name]):
            return
        bucket.upload(copied, key, FileDigests.of(copied), progress)
