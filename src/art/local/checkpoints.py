"""Checkpoints in a model's folder, by the names that scripts for older releases use."""

from __future__ import annotations

import logging
from pathlib import Path

from art import checkpoints

logger = logging.getLogger(__name__)

__all__ = ["delete_checkpoints", "get_last_checkpoint_dir", "migrate_checkpoints_to_new_structure"]


def delete_checkpoints(output_dir: str, excluding: list[int]) -> None:
    """Delete all checkpoints in a model's folder but these. Knows nothing of a server that may use them.

    Args:
        output_dir: The model's folder.
        excluding: Steps to keep.
    """
    checkpoints.delete_checkpoints(Path(output_dir), keep=set(excluding))


def get_last_checkpoint_dir(output_dir: str) -> str | None:
    """Return the folder of the newest complete checkpoint in a model's folder, or None."""
    step = checkpoints.newest_step(Path(output_dir))
    return None if step is None else str(checkpoints.checkpoint_dir(Path(output_dir), step))


def migrate_checkpoints_to_new_structure(output_dir: str) -> None:
    """Move checkpoints that old releases kept beside `checkpoints/` to below it; none there is replaced."""
    model_dir = Path(output_dir)
    for path in sorted(model_dir.iterdir()) if model_dir.is_dir() else ():
        if not (path.name.isdecimal() and path.is_dir()):
            continue
        target = checkpoints.checkpoint_dir(model_dir, int(path.name))
        if target.exists():
            logger.warning("checkpoint not moved, since there is one already: %s -> %s", path, target)
            continue
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
        logger.info("checkpoint moved: %s -> %s", path, target)
