"""Fetch a model's trajectories from S3."""

from __future__ import annotations

from typing import Protocol

from art.env import BACKUP_BUCKET


class StoredModel(Protocol):
    """What is asked of a model here."""

    name: str
    project: str


async def pull_model_trajectories(model: StoredModel) -> None:
    """Fetch a model's trajectories and history from the bucket in `BACKUP_BUCKET` into the default place for runs.

    Raises:
        EnvironmentError: `BACKUP_BUCKET` is not set.
    """
    bucket = BACKUP_BUCKET.read()
    if bucket is None:
        raise OSError(f"{BACKUP_BUCKET.name} is not set: it names the S3 bucket that trajectories are pulled from")
    from art.utils.s3 import pull_model_from_s3

    await pull_model_from_s3(
        model_name=model.name, project=model.project, s3_bucket=bucket, exclude=["checkpoints", "logs"]
    )
