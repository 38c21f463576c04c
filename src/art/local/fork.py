"""Take a checkpoint over into another model's folder, or into any folder. Blocks."""

from __future__ import annotations

import glob
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from art.checkpoint_manifest import OPTIONAL_FILES, Manifest, Origin, ParentCheckpoint, read_manifest
from art.checkpoints import (
    checkpoint_dir,
    is_process_alive,
    newest_step,
    next_step,
    remove_abandoned_staging,
    stage_checkpoint,
    verify_checkpoint,
)
from art.errors import CheckpointError
from art.folders import remove
from art.utils.directory_lock import DirectoryLock
from art.utils.s3_bucket import Bucket
from art.utils.s3_checkpoints import RemoteCheckpoint, fetch_checkpoint, remote_manifest
from art.utils.s3_folders import Transfers, local_files

logger = logging.getLogger(__name__)


@contextmanager
def held_folder(model_dir: Path) -> Iterator[None]:
    """Keep other processes from training the model while its checkpoints change.

    Raises:
        ConfigurationError: Another process trains it.
    """
    if not model_dir.is_dir():
        yield
        return
    lock = DirectoryLock(model_dir)
    lock.acquire()
    try:
        remove_abandoned_staging(model_dir)
        yield
    finally:
        lock.release()


@contextmanager
def _ready_for(model_dir: Path, parent: ParentCheckpoint) -> Iterator[bool]:
    """Hold a model's folder; gives False where it has gone on from that very checkpoint already."""
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise CheckpointError(f"step {parent.step} not forked: {model_dir} cannot be made: {err}") from err
    with held_folder(model_dir):
        highest = next_step(model_dir) - 1
        newest = newest_step(model_dir)
        if newest is not None and newest > parent.step:
            manifest = read_manifest(checkpoint_dir(model_dir, newest))
            begun_with = None if manifest is None else manifest.origin.forked_from
            if begun_with is not None and replace(begun_with, location=None) == replace(parent, location=None):
                logger.info("forked before: %s is at step %d, which came of %s", model_dir, newest, begun_with)
                yield False
                return
        if highest > parent.step:
            raise CheckpointError(
                f"step {parent.step} not forked into {model_dir}: it has a checkpoint of step {highest}, from which "
                "training would go on; fork into another model, or delete its newer checkpoints"
            )
        yield True


def fork_local(source: Path, target_dir: Path, parent: ParentCheckpoint, base_model: str | None) -> None:
    """Copy a checkpoint into another model's folder, under the same step.

    Args:
        source: The checkpoint.
        target_dir: The other model's folder; made where it is absent.
        parent: What the source is.
        base_model: The base model of the other model; None where that is not known.

    Raises:
        CheckpointError: The source is not loadable, the other model has newer checkpoints, or the file system refused.
        ConfigurationError: Another process trains the other model.
    """
    verify_checkpoint(source)
    origin = _fork_origin(read_manifest(source), base_model, parent)
    with _ready_for(target_dir, parent) as is_wanted:
        if is_wanted:
            with stage_checkpoint(target_dir, parent.step, origin, replace=True) as staging:
                _copy_files(source, staging)
            logger.info("checkpoint forked: %s -> %s", source, target_dir)


def fork_remote(
    bucket: Bucket,
    remote: RemoteCheckpoint,
    target_dir: Path,
    parent: ParentCheckpoint,
    base_model: str | None,
    transfers: Transfers,
) -> None:
    """Fetch a checkpoint from a bucket into another model's folder, under the same step; else as `fork_local`.

    Raises:
        S3SyncError: It could not be fetched, or did not arrive as it was.
    """
    try:
        manifest = remote_manifest(bucket, remote)
    except ValueError:
        manifest = None  # fetching will tell
    origin = _fork_origin(manifest, base_model, parent)
    with _ready_for(target_dir, parent) as is_wanted:
        if is_wanted:
            fetch_checkpoint(bucket, remote, target_dir, transfers, origin=origin)


def _fork_origin(manifest: Manifest | None, base_model: str | None, parent: ParentCheckpoint) -> Origin:
    theirs = None if manifest is None else manifest.origin.base_model
    if theirs is not None and base_model is not None and theirs != base_model:
        logger.warning("the forked checkpoint was trained on %s, and is used on %s", theirs, base_model)
    return Origin("fork", theirs or base_model, parent, forked_from=parent)


def _copy_files(source: Path, target: Path) -> None:
    """Copy a checkpoint's files, as independent files."""
    for name, path in local_files(source).items():
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(path, destination)
        except FileNotFoundError:
            if name not in OPTIONAL_FILES:
                raise  # a newer step takes the optimizer's state, and only that


def export_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint to any folder, which has all of it or is not there; files of one that is there are replaced."""
    prefix = f".{target.name}.art-"
    for left in target.parent.glob(f"{glob.escape(prefix)}*-*"):  # by a copy that was killed
        writer = left.name.removeprefix(prefix).split("-")[0]
        if writer.isdecimal() and not is_process_alive(int(writer)):
            remove(left)
    staging = target.parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        staging.mkdir(parents=True)
        _copy_files(source, staging)
        verify_checkpoint(staging, digests=True)
        if not target.exists():
            staging.rename(target)
            return
        for name in OPTIONAL_FILES:
            (target / name).unlink(missing_ok=True)  # of another checkpoint
        for name, path in local_files(staging).items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            path.replace(target / name)
    except OSError as err:
        raise CheckpointError(f"checkpoint {source} not copied to {target}: {err}") from err
    finally:
        remove(staging)
