"""Checkpoints and everything else of a model, to and from S3 or another server that speaks its protocol.

Layout: `s3://{bucket}/{prefix/}{project}/models/{name}/`, and below it what the model's folder holds. Needs the extra
`s3`. Credentials and endpoint come from where every AWS program takes them (`art.utils.s3_bucket`).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from art.checkpoints import checkpoint_dir, remove_abandoned_staging, require_checkpoint
from art.errors import CheckpointUnavailableError, ConfigurationError, S3SyncError
from art.utils.limit_concurrency import limit_concurrency
from art.utils.output_dirs import get_output_dir_from_model_properties
from art.utils.s3_bucket import Bucket, FileDigests
from art.utils.s3_checkpoints import CHECKPOINTS_PREFIX, fetch_checkpoint
from art.utils.s3_folders import Transfers, fetch_file, fetch_folder, send_folder
from art.utils.s3_model import (
    ZIPPED_STEPS_PREFIX,
    bucket_name,
    in_thread,
    model_prefix,
    pull_model,
    push_model,
    require_remote,
)

__all__ = (
    "ExcludableOption",
    "S3SyncError",
    "archive_and_presign_step_url",
    "build_s3_path",
    "build_s3_zipped_step_path",
    "ensure_bucket_exists",
    "pull_model_from_s3",
    "push_model_to_s3",
    "s3_sync",
)

ExcludableOption = Literal["checkpoints", "logs", "trajectories"]

URL_VALID_S = 3600


def build_s3_path(
    *,
    model_name: str,
    project: str,
    step: int | None = None,
    s3_bucket: str | None = None,
    prefix: str | None = None,
) -> str:
    """Name a model's folder in a bucket, or the folder of one of its steps.

    Args:
        model_name: The model.
        project: Its project.
        step: The step; None for the model's folder.
        s3_bucket: The bucket; None for the one in `BACKUP_BUCKET`.
        prefix: Folder in the bucket below which everything lies.

    Raises:
        ConfigurationError: No bucket is named.
    """
    key = model_prefix(model_name, project, prefix)
    if step is not None:
        key += f"{CHECKPOINTS_PREFIX}{step:04d}/"
    return f"s3://{bucket_name(s3_bucket)}/{key}".rstrip("/")


def build_s3_zipped_step_path(
    *, model_name: str, project: str, step: int, s3_bucket: str | None = None, prefix: str | None = None
) -> str:
    """Name the archive of one step in a bucket; arguments as for `build_s3_path`."""
    key = f"{model_prefix(model_name, project, prefix)}{ZIPPED_STEPS_PREFIX}{step:04d}.zip"
    return f"s3://{bucket_name(s3_bucket)}/{key}"


async def ensure_bucket_exists(s3_bucket: str | None = None, profile: str | None = None) -> None:
    """Create a bucket if there is none of that name. Only pushing does this.

    Raises:
        ForbiddenBucketCreationError: There is none, and it may not be created.
        S3SyncError: The server cannot be asked.
    """
    name = bucket_name(s3_bucket)
    await asyncio.to_thread(lambda: Bucket(name, profile=profile).ensure_exists())


@limit_concurrency(1)
async def s3_sync(
    source: str,
    destination: str,
    *,
    profile: str | None = None,
    verbose: bool = False,
    delete: bool = False,
    exclude: list[ExcludableOption] | None = None,
) -> None:
    """Copy a file, or make a folder like another one, to or from a bucket.

    Args:
        source: A local path, or `s3://bucket/key`.
        destination: The other of the two.
        profile: Profile of the AWS configuration.
        verbose: Log every file.
        delete: Also delete what the source does not have.
        exclude: Folders to leave out.

    Raises:
        ConfigurationError: Neither is in a bucket, or both are.
        S3SyncError: Files could not be moved, or did not arrive as they were.
    """
    if source.startswith("s3://") == destination.startswith("s3://"):
        raise ConfigurationError(f"one of {source!r} and {destination!r} must be in a bucket (s3://…), the other local")
    excluded = _excluded(exclude)

    def is_meant(name: str) -> bool:
        return not name.startswith(excluded)

    def work(transfers: Transfers) -> None:
        if source.startswith("s3://"):
            bucket, key = _parse(source, profile)
            whole = next((file for file in bucket.list(key) if file.key == key), None)
            if whole is not None:
                return fetch_file(bucket, whole, Path(destination))
            return fetch_folder(bucket, f"{key}/", Path(destination), transfers, selection=is_meant, delete=delete)
        bucket, key = _parse(destination, profile)
        path = Path(source)
        if path.is_file():
            return bucket.upload(path, key, FileDigests.of(path))
        return send_folder(path, bucket, f"{key}/", transfers, selection=is_meant, delete=delete)

    await in_thread(work, verbose=verbose)


async def pull_model_from_s3(
    model_name: str,
    project: str,
    step: int | None = None,
    s3_bucket: str | None = None,
    prefix: str | None = None,
    verbose: bool = False,
    delete: bool = False,
    art_path: str | None = None,
    exclude: list[ExcludableOption] | None = None,
) -> str:
    """Fetch a model's folder, or one of its checkpoints. A checkpoint arrives whole, or not at all.

    Nothing is created in the bucket. A bucket that holds nothing of the model is no error, unless a step is asked for.

    Args:
        model_name: The model.
        project: Its project.
        step: Only this step's checkpoint.
        s3_bucket: The bucket; None for the one in `BACKUP_BUCKET`.
        prefix: Folder in the bucket below which everything lies.
        verbose: Log every file.
        delete: Also delete what the bucket does not have.
        art_path: Where runs are kept on this machine.
        exclude: What to leave out.

    Returns:
        The folder that was fetched.

    Raises:
        CheckpointUnavailableError: The step is not in the bucket.
        CheckpointError: A checkpoint is incomplete, or could not be written.
        S3SyncError: Files could not be fetched, or did not arrive as they were.
    """
    name = bucket_name(s3_bucket)
    key = model_prefix(model_name, project, prefix)
    model_dir = Path(get_output_dir_from_model_properties(project, model_name, art_path))
    excluded = _excluded(exclude)

    def work(transfers: Transfers) -> str:
        bucket = Bucket(name)
        remove_abandoned_staging(model_dir)
        if step is not None:
            return str(fetch_checkpoint(bucket, require_remote(bucket, key, step), model_dir, transfers))
        pull_model(bucket, key, model_dir, transfers, delete=delete, excluded=excluded)
        return str(model_dir)

    return await in_thread(work, verbose=verbose)


async def push_model_to_s3(
    model_name: str,
    project: str,
    s3_bucket: str | None = None,
    prefix: str | None = None,
    verbose: bool = False,
    delete: bool = False,
    art_path: str | None = None,
) -> None:
    """Send a model's folder. The bucket is created if there is none.

    Left out are batches in `tensors/`, files being served, and secrets that an older release may have written into
    `model.json`. Arguments as for `pull_model_from_s3`; `delete`: also delete what this machine does not have.

    Raises:
        CheckpointUnavailableError: The model has no folder here.
        CheckpointIncompleteError: A checkpoint does not hold what its manifest says.
        ForbiddenBucketCreationError: There is no such bucket, and it may not be created.
        S3SyncError: Files could not be sent, or did not arrive as they were.
    """
    name = bucket_name(s3_bucket)
    key = model_prefix(model_name, project, prefix)
    model_dir = Path(get_output_dir_from_model_properties(project, model_name, art_path))

    def work(transfers: Transfers) -> None:
        if not model_dir.is_dir():
            raise CheckpointUnavailableError(f"nothing to push: there is no {model_dir}; register the model first")
        push_model(Bucket(name), key, model_dir, transfers, delete=delete)

    await in_thread(work, verbose=verbose)


async def archive_and_presign_step_url(
    model_name: str,
    project: str,
    step: int,
    s3_bucket: str | None = None,
    prefix: str | None = None,
    verbose: bool = False,
    delete: bool = False,
    art_path: str | None = None,
    checkpoint_path: str | None = None,
) -> str:
    """Send one checkpoint as an archive, and return an address that serves it to anybody for an hour.

    Args:
        model_name: The model.
        project: Its project.
        step: The step; fetched from the bucket first where it is not on this machine.
        s3_bucket: The bucket; None for the one in `BACKUP_BUCKET`.
        prefix: Folder in the bucket below which everything lies.
        verbose: Log every file.
        delete: Accepted, has no effect.
        art_path: Where runs are kept on this machine.
        checkpoint_path: Take the checkpoint from this folder instead.

    Raises:
        CheckpointUnavailableError: The step is neither here nor in the bucket.
        S3SyncError: Files could not be moved.
    """
    model_dir = Path(get_output_dir_from_model_properties(project, model_name, art_path))
    folder = Path(checkpoint_path) if checkpoint_path else checkpoint_dir(model_dir, step)
    if not folder.is_dir():
        await pull_model_from_s3(model_name, project, step, s3_bucket, prefix, verbose, art_path=art_path)
        folder = checkpoint_dir(model_dir, step)
    url = build_s3_zipped_step_path(
        model_name=model_name, project=project, step=step, s3_bucket=s3_bucket, prefix=prefix
    )

    def work(transfers: Transfers) -> str:
        if checkpoint_path is None:
            require_checkpoint(model_dir, step)
        bucket, key = _parse(url, None)
        bucket.ensure_exists()
        with tempfile.TemporaryDirectory(prefix="art-s3-") as scratch:
            archive = Path(shutil.make_archive(f"{scratch}/step", "zip", folder))
            bucket.upload(archive, key, FileDigests.of(archive))
        return bucket.presigned_url(key, URL_VALID_S)

    return await in_thread(work, verbose=verbose)


def _excluded(exclude: Sequence[str] | None) -> tuple[str, ...]:
    unknown = [name for name in exclude or () if name not in get_args(ExcludableOption)]
    if unknown:
        raise ConfigurationError(f"exclude={unknown} is not known: use {', '.join(get_args(ExcludableOption))}")
    return tuple(f"{name}/" for name in exclude or ())


def _parse(url: str, profile: str | None) -> tuple[Bucket, str]:
    name, _, key = url.removeprefix("s3://").partition("/")
    return Bucket(name, profile=profile), key.rstrip("/")
