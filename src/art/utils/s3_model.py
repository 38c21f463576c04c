"""A model's folder and its place in a bucket: what belongs there, how all of it is sent or fetched. Blocks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from art import env
from art.checkpoints import checkpoint_dir, delete_checkpoints, list_steps
from art.errors import CheckpointIncompleteError, CheckpointUnavailableError, ConfigurationError
from art.model.model_file import MODEL_FILE, OWNER_ONLY, without_secrets
from art.utils.s3_bucket import Bucket
from art.utils.s3_checkpoints import (
    CHECKPOINTS_PREFIX,
    RemoteCheckpoint,
    delete_remote_checkpoint,
    fetch_checkpoint,
    list_remote_checkpoints,
    newest_complete,
    send_checkpoint,
)
from art.utils.s3_folders import Transfers, fetch_folder, files_below, send_folder

logger = logging.getLogger(__name__)

T = TypeVar("T")

ZIPPED_STEPS_PREFIX = "zipped-steps/"
# What is only of use on the machine that it was made on.
_LOCAL_FOLDERS = ("serving/", "tensors/")


def bucket_name(s3_bucket: str | None) -> str:
    """Return the bucket that is named, or the one in `BACKUP_BUCKET`.

    Raises:
        ConfigurationError: There is neither.
    """
    name = s3_bucket or env.BACKUP_BUCKET.read()
    if not name:
        raise ConfigurationError("no bucket is named: give s3_bucket, or set BACKUP_BUCKET")
    return name


def model_prefix(model_name: str, project: str, prefix: str | None) -> str:
    """Return the prefix of a model's folder in a bucket, ending with "/"."""
    above = (prefix or "").strip("/")
    return f"{above}/{project}/models/{model_name}/" if above else f"{project}/models/{model_name}/"


def require_remote(bucket: Bucket, key: str, step: int | Literal["latest"]) -> RemoteCheckpoint:
    """Return a checkpoint that must be in the bucket, below the prefix of the model's folder.

    Raises:
        CheckpointUnavailableError: It is not.
    """
    there = list_remote_checkpoints(bucket, key)
    found = newest_complete(bucket, there.values()) if step == "latest" else there.get(step)
    if found is None:
        raise CheckpointUnavailableError(
            f"no checkpoint of step {step} at {bucket.url(key)}; steps there: {list(there) or 'none'}",
            step=None if step == "latest" else step,
            available_steps=list(there),
        )
    return found


async def in_thread(work: Callable[[Transfers], T], *, verbose: bool) -> T:
    """Run blocking transfers; when the caller is cancelled they are stopped and waited for."""
    transfers = Transfers(verbose=verbose)
    call = asyncio.ensure_future(asyncio.to_thread(work, transfers))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        transfers.stop()
        await asyncio.wait({call})
        if not call.cancelled() and call.exception() is not None:
            logger.info("transfers ended after they were cancelled: %s", call.exception())
        raise


def push_model(bucket: Bucket, key: str, model_dir: Path, transfers: Transfers, *, delete: bool) -> None:
    """Send a model's folder: every complete checkpoint, then the rest; creates the bucket if there is none."""
    bucket.ensure_exists()
    there = list_remote_checkpoints(bucket, key)
    steps = list_steps(model_dir)
    for step in steps:
        remote = there.get(step) or RemoteCheckpoint(step, f"{key}{CHECKPOINTS_PREFIX}{step:04d}/", {})
        path = checkpoint_dir(model_dir, step)
        try:
            send_checkpoint(path, bucket, remote.prefix, remote.files, transfers)
        except FileNotFoundError:
            if path.exists():
                raise
            logger.info("not sent, since it was deleted meanwhile: %s", path)
    for step, remote in there.items():
        if delete and step not in steps:
            delete_remote_checkpoint(bucket, remote)
    send_folder(model_dir, bucket, key, transfers, selection=_is_shared_file, delete=delete, rewrite=_without_secrets)
    logger.info("model pushed: %s -> %s", model_dir, bucket.url(key))


def pull_model(
    bucket: Bucket,
    key: str,
    model_dir: Path,
    transfers: Transfers,
    *,
    delete: bool,
    excluded: tuple[str, ...],
) -> None:
    """Fetch a model's folder: every complete checkpoint, then the rest. Does nothing where there is nothing."""
    there = list_remote_checkpoints(bucket, key)
    if not files_below(bucket, key):
        logger.info("nothing to pull at %s", bucket.url(key))
        return
    if CHECKPOINTS_PREFIX not in excluded:
        for checkpoint in there.values():
            try:
                fetch_checkpoint(bucket, checkpoint, model_dir, transfers)
            except CheckpointIncompleteError as err:
                logger.warning("checkpoint not pulled: %s", err)
        if delete:
            delete_checkpoints(model_dir, keep=there.keys())
    fetch_folder(
        bucket,
        key,
        model_dir,
        transfers,
        selection=lambda name: _is_shared_file(name) and not name.startswith(excluded),
        delete=delete,
        modes={MODEL_FILE: OWNER_ONLY},
    )
    logger.info("model pulled: %s -> %s", bucket.url(key), model_dir)


def _is_shared_file(name: str) -> bool:
    """Tell whether a file of a model's folder is kept in the bucket, beside its checkpoints."""
    return not name.startswith((CHECKPOINTS_PREFIX, ZIPPED_STEPS_PREFIX, *_LOCAL_FOLDERS))


def _without_secrets(path: Path) -> bytes | None:
    if path.name != MODEL_FILE:
        return None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return b"{}\n"  # what cannot be read cannot be cleaned
    return json.dumps(without_secrets(fields), indent=2).encode()
