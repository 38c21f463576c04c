"""Checkpoints in a bucket: which are complete, how one is sent, how one is fetched. Blocks.

A bucket has no rename, so a checkpoint counts as there when what is sent last is there: its manifest, or, for one
without, `adapter_config.json`. Before one is replaced, these two go first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from art.checkpoint_manifest import MANIFEST_FILE, OPTIONAL_FILES, Manifest, Origin, parse_manifest, read_manifest
from art.checkpoints import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHTS_FILE,
    checkpoint_dir,
    stage_checkpoint,
    verify_checkpoint,
)
from art.errors import CheckpointIncompleteError, S3SyncError
from art.utils.s3_bucket import Bucket, FileDigests, Progress, RemoteFile
from art.utils.s3_folders import Transfer, Transfers, files_below, is_same, local_files

logger = logging.getLogger(__name__)

CHECKPOINTS_PREFIX = "checkpoints/"
_SENT_LAST = (ADAPTER_CONFIG_FILE, MANIFEST_FILE)  # in this order


@dataclass(frozen=True)
class RemoteCheckpoint:
    """What lies below a checkpoint's prefix.

    Attributes:
        step: Its step.
        prefix: Ends with "/".
        files: By name below the prefix.
    """

    step: int
    prefix: str
    files: dict[str, RemoteFile]


def list_remote_checkpoints(bucket: Bucket, model_prefix: str) -> dict[int, RemoteCheckpoint]:
    """List a model's checkpoints in a bucket by step, complete or not.

    Args:
        bucket: The bucket.
        model_prefix: Prefix of the model's folder, ending with "/".
    """
    root = model_prefix + CHECKPOINTS_PREFIX
    found: dict[int, RemoteCheckpoint] = {}
    for name, remote in files_below(bucket, root).items():
        folder, _, rest = name.partition("/")
        if folder.isdecimal() and rest:
            step = int(folder)
            checkpoint = found.setdefault(step, RemoteCheckpoint(step, f"{root}{folder}/", {}))
            checkpoint.files[rest] = remote
    return dict(sorted(found.items()))


def newest_complete(
    bucket: Bucket, checkpoints: Iterable[RemoteCheckpoint], *, not_after: int | None = None
) -> RemoteCheckpoint | None:
    """Return the newest checkpoint that is complete, or None; others are passed over with a warning."""
    for checkpoint in sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True):
        if not_after is not None and checkpoint.step > not_after:
            continue
        missing = missing_remotely(bucket, checkpoint)
        if not missing:
            return checkpoint
        logger.warning(
            "checkpoint in the bucket passed over: %s missing_or_broken=%s",
            bucket.url(checkpoint.prefix),
            ", ".join(missing),
        )
    return None


def missing_remotely(bucket: Bucket, checkpoint: RemoteCheckpoint) -> list[str]:
    """Name the files that a checkpoint in a bucket lacks."""
    return _examine(bucket, checkpoint)[1]


def remote_manifest(bucket: Bucket, checkpoint: RemoteCheckpoint) -> Manifest | None:
    """Read the manifest of a checkpoint in a bucket; None where it has none.

    Raises:
        ValueError: It is broken.
    """
    remote = checkpoint.files.get(MANIFEST_FILE)
    return None if remote is None else parse_manifest(bucket.read(remote.key))


def fetch_checkpoint(
    bucket: Bucket,
    checkpoint: RemoteCheckpoint,
    model_dir: Path,
    transfers: Transfers,
    *,
    origin: Origin | None = None,
) -> Path:
    """Fetch a checkpoint into a model's folder, in place of one of that step that differs.

    Args:
        bucket: The bucket.
        checkpoint: What to fetch.
        model_dir: The model's folder.
        transfers: Moves the files.
        origin: Where its manifest shall say that it comes from; None keeps its own.

    Raises:
        CheckpointIncompleteError: The bucket does not hold all of it, or something else than its manifest says.
        CheckpointError: The file system refused.
        S3SyncError: Files could not be fetched.
    """
    target = checkpoint_dir(model_dir, checkpoint.step)
    manifest, missing = _examine(bucket, checkpoint)
    if missing:
        url = bucket.url(checkpoint.prefix)
        raise CheckpointIncompleteError(
            f"checkpoint {url} is incomplete: {', '.join(missing)} absent or broken; push it again, or use another "
            "step",
            path=url,
            missing=missing,
        )
    if origin is None and _has_same(target, manifest, bucket, checkpoint):
        logger.info("checkpoint is here already: path=%s", target)
        return target
    with stage_checkpoint(model_dir, checkpoint.step, origin, replace=True) as staging:
        transfers.run(
            f"step {checkpoint.step} from {bucket.url(checkpoint.prefix)}",
            [_fetch(bucket, name, remote, staging, manifest) for name, remote in checkpoint.files.items()],
        )
    logger.info("checkpoint fetched: %s -> %s", bucket.url(checkpoint.prefix), target)
    return target


def send_checkpoint(
    path: Path, bucket: Bucket, prefix: str, there: dict[str, RemoteFile], transfers: Transfers
) -> None:
    """Send a checkpoint that the bucket does not have, or has otherwise.

    Args:
        path: The checkpoint's folder.
        bucket: The bucket.
        prefix: The checkpoint's prefix, ending with "/".
        there: What lies below it, by name.
        transfers: Moves the files.

    Raises:
        CheckpointIncompleteError: The folder does not hold what its manifest says.
        S3SyncError: Files could not be sent.
    """
    manifest = read_manifest(path)
    here = local_files(path)
    if manifest is not None and _is_there(manifest, bucket, RemoteCheckpoint(manifest.step, prefix, there)):
        return
    digests = {name: FileDigests.of(file) for name, file in here.items() if _is_needed(file)}
    wrong = [
        name
        for name, record in ({} if manifest is None else manifest.files).items()
        if name in digests and digests[name].sha256 != record.sha256
    ]
    if wrong:
        raise CheckpointIncompleteError(
            f"checkpoint {path} not sent: {', '.join(wrong)} differ from its manifest", path=str(path), missing=wrong
        )
    changed = [name for name, of_file in digests.items() if name not in there or there[name].etag != of_file.etag]
    if any(name in there for name in changed):
        bucket.delete(there[name].key for name in reversed(_SENT_LAST) if name in there)
        changed += [name for name in _SENT_LAST if name in digests and name not in changed]
    first = [name for name in changed if name not in _SENT_LAST]
    for names in (first, *([name] for name in _SENT_LAST if name in changed)):
        transfers.run(
            f"{path.name} to {bucket.url(prefix)}",
            [_send(here[name], bucket, prefix + name, digests[name]) for name in names],
        )
    logger.info("checkpoint sent: %s -> %s", path, bucket.url(prefix))


def delete_remote_checkpoint(bucket: Bucket, checkpoint: RemoteCheckpoint) -> None:
    """Delete a checkpoint from a bucket, so that it counts as gone from the first moment on."""
    bucket.delete(checkpoint.files[name].key for name in reversed(_SENT_LAST) if name in checkpoint.files)
    bucket.delete(remote.key for name, remote in checkpoint.files.items() if name not in _SENT_LAST)


def _examine(bucket: Bucket, checkpoint: RemoteCheckpoint) -> tuple[Manifest | None, list[str]]:
    """Return the manifest of a checkpoint in a bucket, if it has one, and the names of the files that it lacks."""
    missing = [name for name in (ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE) if name not in checkpoint.files]
    try:
        manifest = remote_manifest(bucket, checkpoint)
    except ValueError:
        return None, [*missing, MANIFEST_FILE]
    for name, record in {} if manifest is None else manifest.files.items():
        remote = checkpoint.files.get(name)
        is_wrong = name not in OPTIONAL_FILES if remote is None else remote.size_bytes != record.size_bytes
        if is_wrong and name not in missing:
            missing.append(name)
    return manifest, missing


def _has_same(path: Path, manifest: Manifest | None, bucket: Bucket, checkpoint: RemoteCheckpoint) -> bool:
    """Tell whether a folder holds exactly what lies in a bucket, every byte of it."""
    try:
        if manifest is None:
            verify_checkpoint(path, digests=True)
            return all(is_same(path / name, bucket, remote) for name, remote in checkpoint.files.items())
        if read_manifest(path) != manifest:
            return False
        verify_checkpoint(path, digests=True)
    except (CheckpointIncompleteError, ValueError):
        return False
    return True


def _is_there(manifest: Manifest, bucket: Bucket, checkpoint: RemoteCheckpoint) -> bool:
    """Tell whether a checkpoint was sent before: the same manifest lies there, and all that it lists, by size.

    The manifest was sent last. What was written after it is not what was sent then, and is looked at again.
    """
    found, missing = _examine(bucket, checkpoint)
    if found != manifest or missing:
        return False
    sent_at = checkpoint.files[MANIFEST_FILE].written_at
    return all(remote.written_at <= sent_at for remote in checkpoint.files.values())


def _is_needed(path: Path) -> bool:
    """Tell whether a file is to be sent: what was removed meanwhile, since a newer step has it, is not."""
    return path.name not in OPTIONAL_FILES or path.exists()


def _fetch(bucket: Bucket, name: str, remote: RemoteFile, staging: Path, manifest: Manifest | None) -> Transfer:
    record = None if manifest is None else manifest.files.get(name)
    target = staging / name

    def move(progress: Progress) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        bucket.download(remote.key, target, None if record is None else record.sha256, progress)

    return Transfer(name, remote.size_bytes, move)


def _send(path: Path, bucket: Bucket, key: str, digests: FileDigests) -> Transfer:
    def move(progress: Progress) -> None:
        try:
            bucket.upload(path, key, digests, progress)
        except (FileNotFoundError, S3SyncError):
            if path.name not in OPTIONAL_FILES or path.exists():
                raise
            logger.info("not sent, since it is gone: %s", path)  # a newer step was saved meanwhile

    return Transfer(path.name, digests.size_bytes, move)
