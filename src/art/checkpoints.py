"""Checkpoint folders: stage, check, publish by rename, list, delete. Paths and files only; no torch.

A folder under `checkpoints/` whose name is all digits is complete: it was written under a hidden name, checked, flushed
to disk and renamed. What is in it is recorded in its manifest (`art.checkpoint_manifest`), which every listing compares
by size. Folders that other programs wrote have none; half-written ones are recognised and passed over.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from art.checkpoint_manifest import ADAPTER_CONFIG_FILE as ADAPTER_CONFIG_FILE
from art.checkpoint_manifest import ADAPTER_WEIGHTS_FILE as ADAPTER_WEIGHTS_FILE
from art.checkpoint_manifest import (
    OPTIONAL_FILES,
    MadeBy,
    Manifest,
    Origin,
    ParentCheckpoint,
    missing_adapter_files,
    missing_files,
    read_manifest,
    record_folder,
)
from art.errors import CheckpointError, CheckpointIncompleteError, CheckpointNotFoundError
from art.folders import flush_tree, link_tree, put_in_place, remove, set_aside

logger = logging.getLogger(__name__)

_STAGING_PREFIX = ".staging-"
_DELETED_PREFIX = f"{_STAGING_PREFIX}delete-"


def checkpoints_dir(model_dir: Path) -> Path:
    """Return the folder that holds a model's checkpoints; it need not exist."""
    return model_dir / "checkpoints"


def checkpoint_dir(model_dir: Path, step: int) -> Path:
    """Return the folder of one step, `checkpoints/0007`; it need not exist."""
    return checkpoints_dir(model_dir) / f"{step:04d}"


def list_steps(model_dir: Path) -> list[int]:
    """List the steps whose checkpoint is complete, ascending. Creates nothing."""
    steps = []
    for step, path in _numbered_folders(model_dir):
        missing = missing_files(path)
        if missing:
            logger.warning("checkpoint passed over: path=%s missing_or_broken=%s", path, ", ".join(missing))
        else:
            steps.append(step)
    return sorted(steps)


def newest_step(model_dir: Path) -> int | None:
    """Return the newest step whose checkpoint is complete, or None."""
    for step, path in sorted(_numbered_folders(model_dir), reverse=True):
        missing = missing_files(path)
        if not missing:
            return step
        logger.warning("checkpoint passed over: path=%s missing_or_broken=%s", path, ", ".join(missing))
    return None


def next_step(model_dir: Path) -> int:
    """Return one more than the highest number there, complete or not, so that no name is ever used twice."""
    root = checkpoints_dir(model_dir)
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1) + 1


def require_checkpoint(model_dir: Path, step: int) -> Path:
    """Return the folder of a step that must exist and be complete.

    Raises:
        CheckpointNotFoundError: There is no such folder.
        CheckpointIncompleteError: The folder lacks files.
    """
    path = checkpoint_dir(model_dir, step)
    if not path.is_dir():
        available = list_steps(model_dir)
        raise CheckpointNotFoundError(
            f"no checkpoint of step {step} at {path}; available steps: {available or 'none'}",
            step=step,
            available_steps=available,
        )
    verify_checkpoint(path)
    return path


def verify_checkpoint(path: Path, *, digests: bool = False) -> None:
    """Check that a checkpoint folder can be loaded: its files are there, whole, and what its manifest says, if any.

    Args:
        path: The folder.
        digests: Read every file and compare its digest, too, not only its size.

    Raises:
        CheckpointIncompleteError: Files are absent, empty, cut short, or not those that were saved.
    """
    missing = missing_files(path, digests=digests)
    if missing:
        raise CheckpointIncompleteError(
            f"checkpoint {path} is incomplete: {', '.join(missing)} absent, broken, or not what was saved; use another "
            "step, or remove this folder to go on from the one before",
            path=str(path),
            missing=missing,
        )


@contextmanager
def stage_checkpoint(
    model_dir: Path, step: int, origin: Origin | None = None, *, replace: bool = False
) -> Iterator[Path]:
    """Write a checkpoint so that readers see all of it or nothing.

    Args:
        model_dir: The model's folder.
        step: The step to write.
        origin: What the manifest shall say of where it comes from. None keeps a manifest that was copied along.
        replace: Take the place of a checkpoint of that step; otherwise there must be none.

    Yields:
        An empty staging folder. On a clean exit it is checked, against a manifest that was copied along, too; then it
        gets its own manifest, is flushed to disk and renamed to `checkpoints/{step:04d}`. On an exception it is removed
        and the exception goes on.

    Raises:
        CheckpointError: The step exists already, or the file system refused (full, read-only).
        CheckpointIncompleteError: What was written is not a loadable checkpoint.
    """
    target = checkpoint_dir(model_dir, step)
    if target.exists() and not replace:
        raise CheckpointError(f"checkpoint {target} exists already; a step is never written twice")
    staging = target.parent / f"{_STAGING_PREFIX}{step:04d}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        staging.mkdir(parents=True)
        yield staging
        _seal(staging, step, origin)
        flush_tree(staging)
        put_in_place(staging, target, _DELETED_PREFIX)
    except OSError as err:
        raise CheckpointError(f"checkpoint of step {step} not written to {target}: {err}") from err
    finally:
        remove(staging)


def origin_after(previous: Path | None, made_by: MadeBy, base_model: str | None = None) -> Origin:
    """Say where the step that follows a checkpoint of the same model comes from.

    Args:
        previous: The checkpoint, which is complete; None where there is none.
        made_by: What makes the new step.
        base_model: Its base model; None: the same as before.
    """
    if previous is None:
        return Origin(made_by, base_model)
    manifest = read_manifest(previous)
    before = Origin() if manifest is None else manifest.origin
    parent = ParentCheckpoint(int(previous.name)) if previous.name.isdecimal() else None
    return Origin(made_by, base_model or before.base_model, parent, before.forked_from)


def warn_of_another_base(path: Path, base_model: str) -> None:
    """Say if a complete checkpoint was trained on another base model than it is used on: it may fit all the same."""
    manifest = read_manifest(path)
    trained_on = None if manifest is None else manifest.origin.base_model
    if trained_on is not None and trained_on != base_model:
        logger.warning("checkpoint %s was trained on %s, and is used on %s", path, trained_on, base_model)


def remove_abandoned_staging(model_dir: Path) -> list[Path]:
    """Remove staging folders whose writer is gone, as after a kill in the middle of saving."""
    removed = []
    for path in checkpoints_dir(model_dir).glob(f"{_STAGING_PREFIX}*"):
        writer = path.name.split("-")[-2]
        if writer.isdigit() and not is_process_alive(int(writer)):
            remove(path)
            removed.append(path)
    if removed:
        logger.info("abandoned checkpoint folders removed: count=%d", len(removed))
    return removed


def copy_checkpoint(source: Path, model_dir: Path, step: int) -> Path:
    """Publish a copy of the model's own checkpoint as another step, sharing file contents where that is possible.

    Raises:
        CheckpointIncompleteError: The source is not loadable.
        CheckpointError: The step exists already, or the file system refused.
    """
    verify_checkpoint(source)
    with stage_checkpoint(model_dir, step, origin_after(source, "copy")) as staging:
        link_tree(source, staging)
    return checkpoint_dir(model_dir, step)


@contextmanager
def rewrite_checkpoint(path: Path) -> Iterator[Path]:
    """Change files of a checkpoint so that readers see all of the change or nothing.

    Yields:
        A folder with the checkpoint's files, perhaps as links: replace files there, never write into them.

    Raises:
        CheckpointError: The file system refused.
        CheckpointIncompleteError: What is there afterwards is not a loadable checkpoint.
    """
    staging = path.parent / f"{_STAGING_PREFIX}{path.name}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        manifest = read_manifest(path)
        link_tree(path, staging)
        yield staging
        missing = missing_adapter_files(staging)
        if missing:
            raise CheckpointIncompleteError(
                f"checkpoint {path} not changed: {', '.join(missing)} would be broken", path=str(path), missing=missing
            )
        if manifest is not None:
            record_folder(staging, manifest.step, manifest.origin).write(staging)
        flush_tree(staging)
        put_in_place(staging, path, _DELETED_PREFIX)
    except OSError as err:
        raise CheckpointError(f"checkpoint {path} not changed: {err}") from err
    finally:
        remove(staging)


def delete_checkpoints(model_dir: Path, keep: Collection[int]) -> list[int]:
    """Delete every numbered checkpoint folder whose step is not in `keep`; return the deleted steps.

    Raises:
        CheckpointError: The file system refused.
    """
    deleted = []
    for step, path in _numbered_folders(model_dir):
        if step in keep:
            continue
        try:
            remove(set_aside(path, _DELETED_PREFIX))
        except FileNotFoundError:
            continue  # somebody else was faster
        except OSError as err:
            raise CheckpointError(f"checkpoint {path} not deleted: {err}") from err
        deleted.append(step)
    return sorted(deleted)


def drop_optional_files(model_dir: Path, keep: int) -> None:
    """Remove what only the newest step needs from all complete checkpoints but this one, as far as that is possible."""
    for step in list_steps(model_dir):
        for name in OPTIONAL_FILES if step != keep else ():
            try:
                (checkpoint_dir(model_dir, step) / name).unlink(missing_ok=True)
            except OSError as err:  # the newer step is saved all the same
                logger.warning("large file not removed from an older checkpoint: %s", err)


def is_process_alive(pid: int) -> bool:
    """Tell whether a process with that id exists (a zombie counts)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _numbered_folders(model_dir: Path) -> list[tuple[int, Path]]:
    root = checkpoints_dir(model_dir)
    if not root.is_dir():
        return []
    numbered = [(int(path.name), path) for path in root.iterdir() if path.name.isdecimal() and path.is_dir()]
    return [(step, path) for step, path in numbered if path == checkpoint_dir(model_dir, step)]


def _seal(staging: Path, step: int, origin: Origin | None) -> None:
    missing = missing_files(staging)
    if not missing:
        recorded = record_folder(staging, step, origin or Origin())
        carried = read_manifest(staging)
        missing = [] if carried is None else _differences(carried, recorded)
    if missing:
        raise CheckpointIncompleteError(
            f"checkpoint of step {step} not written: {', '.join(missing)} absent, broken, or not what the manifest "
            f"that came along says",
            path=str(staging),
            missing=missing,
        )
    if carried is None or origin is not None:
        recorded.write(staging)


def _differences(wanted: Manifest, found: Manifest) -> list[str]:
    return [name for name, record in wanted.files.items() if name in found.files and found.files[name] != record]
