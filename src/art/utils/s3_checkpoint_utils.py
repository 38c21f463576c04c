"""Which steps of a model a bucket holds."""

from __future__ import annotations

import asyncio
import logging

from art.utils.s3_bucket import Bucket
from art.utils.s3_checkpoints import CHECKPOINTS_PREFIX, list_remote_checkpoints, newest_complete
from art.utils.s3_folders import files_below
from art.utils.s3_model import bucket_name, model_prefix

logger = logging.getLogger(__name__)


async def get_latest_checkpoint_step_from_s3(
    model_name: str, project: str, s3_bucket: str | None = None, prefix: str | None = None
) -> int | None:
    """Return the newest step whose checkpoint in the bucket is complete, or None.

    Args:
        model_name: The model.
        project: Its project.
        s3_bucket: The bucket; None for the one in `BACKUP_BUCKET`.
        prefix: Folder in the bucket below which everything lies.

    Raises:
        S3SyncError: The bucket cannot be read.
    """
    return await _newest(model_name, project, None, s3_bucket, prefix)


async def get_checkpoint_step_not_after_from_s3(
    model_name: str, project: str, not_after_step: int, s3_bucket: str | None = None, prefix: str | None = None
) -> int | None:
    """Return the newest such step that is not above `not_after_step`, or None; else as the function above."""
    return await _newest(model_name, project, not_after_step, s3_bucket, prefix)


async def migrate_s3_checkpoints_to_new_structure(
    model_name: str,
    project: str,
    s3_bucket: str | None = None,
    prefix: str | None = None,
    dry_run: bool = False,
) -> None:
    """Move checkpoints that old releases kept beside `checkpoints/` to below it, on the server.

    Args:
        model_name: The model.
        project: Its project.
        s3_bucket: The bucket; None for the one in `BACKUP_BUCKET`.
        prefix: Folder in the bucket below which everything lies.
        dry_run: Only log what would be moved.

    Raises:
        S3SyncError: The bucket cannot be read or written.
    """
    name, key = bucket_name(s3_bucket), model_prefix(model_name, project, prefix)

    def move() -> None:
        bucket = Bucket(name)
        moves = {}
        for file_name, remote in files_below(bucket, key).items():
            folder, _, rest = file_name.partition("/")
            if folder.isdecimal() and rest:
                moves[remote.key] = f"{key}{CHECKPOINTS_PREFIX}{int(folder):04d}/{rest}"
        for old, new in moves.items():
            logger.info("%s: %s -> %s", "would be moved" if dry_run else "moved", bucket.url(old), bucket.url(new))
            if not dry_run:
                bucket.copy(old, new)
        if not dry_run:
            bucket.delete(moves)

    await asyncio.to_thread(move)


async def _newest(
    model_name: str, project: str, not_after: int | None, s3_bucket: str | None, prefix: str | None
) -> int | None:
    name, key = bucket_name(s3_bucket), model_prefix(model_name, project, prefix)

    def look() -> int | None:
        bucket = Bucket(name)
        found = newest_complete(bucket, list_remote_checkpoints(bucket, key).values(), not_after=not_after)
        return None if found is None else found.step

    return await asyncio.to_thread(look)
