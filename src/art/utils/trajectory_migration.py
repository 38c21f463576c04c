"""Turn trajectory files of older releases (JSON lines, or YAML) into parquet files."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art.errors import DataError
from art.trajectories import TrajectoryGroup
from art.utils.output_dirs import get_models_dir, get_trajectories_dir
from art.utils.trajectory_codec import (
    dict_to_message_or_choice,
    dict_to_trajectory,
    dict_to_trajectory_group,
    history_to_dict,
    message_or_choice_to_dict,
    to_json,
    trajectory_group_to_dict,
    trajectory_to_dict,
)
from art.utils.trajectory_logging import read_trajectory_groups_parquet, write_trajectory_groups_parquet

logger = logging.getLogger(__name__)

__all__ = [
    "MigrationResult",
    "auto_migrate_on_register",
    "deserialize_trajectory_groups",
    "dict_to_message_or_choice",
    "dict_to_trajectory",
    "dict_to_trajectory_group",
    "history_to_dict",
    "message_or_choice_to_dict",
    "migrate_all_models",
    "migrate_jsonl_to_parquet",
    "migrate_model_dir",
    "migrate_trajectories_dir",
    "serialize_trajectory_groups",
    "trajectory_group_to_dict",
    "trajectory_to_dict",
]


_OLD_SUFFIXES = (".jsonl", ".yaml", ".yml")


@dataclass
class MigrationResult:
    """What a migration did.

    Attributes:
        files_migrated: Files converted, or that would be in a dry run.
        files_skipped: Files left alone, because their parquet file exists already.
        bytes_before: Size of the files converted.
        bytes_after: Size of the parquet files written.
        errors: One text for each file that could not be converted; such files stay as they are.
    """

    files_migrated: int = 0
    files_skipped: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def compression_ratio(self) -> float:
        """How many times smaller the files became; 0 where nothing was written."""
        return self.bytes_before / self.bytes_after if self.bytes_after else 0.0

    @property
    def space_saved(self) -> int:
        """Bytes saved."""
        return self.bytes_before - self.bytes_after

    def __add__(self, other: MigrationResult) -> MigrationResult:
        return MigrationResult(
            files_migrated=self.files_migrated + other.files_migrated,
            files_skipped=self.files_skipped + other.files_skipped,
            bytes_before=self.bytes_before + other.bytes_before,
            bytes_after=self.bytes_after + other.bytes_after,
            errors=[*self.errors, *other.errors],
        )


def serialize_trajectory_groups(trajectory_groups: list[TrajectoryGroup]) -> str:
    """Give groups as JSON lines, one for each group, without logprobs."""
    return "\n".join(to_json(trajectory_group_to_dict(group)) for group in trajectory_groups)


def deserialize_trajectory_groups(serialized: str) -> list[TrajectoryGroup]:
    """Read groups from JSON lines, or from the YAML of the oldest releases.

    Raises:
        DataError: The text is neither, or what it holds is not a list of groups.
    """
    records = _load_records(serialized)
    for record in records:
        if not isinstance(record, dict) or not isinstance(record.get("trajectories"), list):
            raise DataError("the text holds something that is not a trajectory group")
    return [dict_to_trajectory_group(record) for record in records]


def migrate_jsonl_to_parquet(
    jsonl_path: Path | str, delete_original: bool = True, dry_run: bool = False
) -> MigrationResult:
    """Convert one file; the parquet file lies beside it.

    The original is deleted only after the new file has been read back and holds the same. Nothing is raised: a file
    that cannot be converted stays, its error is logged and in the result.

    Args:
        jsonl_path: The file.
        delete_original: Delete it afterwards.
        dry_run: Only say what would be done.
    """
    source = Path(jsonl_path)
    target = source.with_suffix(".parquet")
    if target.exists():
        return MigrationResult(files_skipped=1)
    try:
        bytes_before = source.stat().st_size
        groups = deserialize_trajectory_groups(source.read_text(encoding="utf-8"))
        if dry_run:
            return MigrationResult(files_migrated=1, bytes_before=bytes_before)
        write_trajectory_groups_parquet(groups, target)
        bytes_after = target.stat().st_size
        if delete_original:
            _require_same(groups, read_trajectory_groups_parquet(target))
            source.unlink()
    except (OSError, ValueError, KeyError, TypeError) as err:
        logger.warning("trajectory file not converted, kept as it is: path=%s cause=%s: %s", source, type(err), err)
        return MigrationResult(errors=[f"{source}: {err}"])
    return MigrationResult(files_migrated=1, bytes_before=bytes_before, bytes_after=bytes_after)


def migrate_trajectories_dir(
    trajectories_dir: Path | str,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: Callable[[str], None] | None = None,
) -> MigrationResult:
    """Convert every `.jsonl`, `.yaml` and `.yml` file in a folder and below it.

    Args:
        trajectories_dir: The folder; it need not exist.
        delete_originals: Delete each file once it is converted.
        dry_run: Only say what would be done.
        progress_callback: Called with each file's path before it is converted.
    """
    result = MigrationResult()
    old_files = (path for path in Path(trajectories_dir).rglob("*") if path.suffix in _OLD_SUFFIXES and path.is_file())
    for path in sorted(old_files):
        if progress_callback is not None:
            progress_callback(str(path))
        result += migrate_jsonl_to_parquet(path, delete_original=delete_originals, dry_run=dry_run)
    return result


def migrate_model_dir(
    model_dir: Path | str,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: Callable[[str], None] | None = None,
) -> MigrationResult:
    """Convert all trajectories of one model. Arguments as for `migrate_trajectories_dir`."""
    return migrate_trajectories_dir(get_trajectories_dir(str(model_dir)), delete_originals, dry_run, progress_callback)


def migrate_all_models(
    art_path: Path | str,
    project_name: str,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: Callable[[str], None] | None = None,
) -> MigrationResult:
    """Convert all trajectories of a project's models. Arguments as for `migrate_trajectories_dir`."""
    models_dir = Path(get_models_dir(project_name, str(art_path)))
    model_dirs = sorted(path for path in models_dir.iterdir() if path.is_dir()) if models_dir.is_dir() else []
    return sum(
        (migrate_model_dir(path, delete_originals, dry_run, progress_callback) for path in model_dirs),
        MigrationResult(),
    )


def auto_migrate_on_register(model_dir: Path | str) -> MigrationResult:
    """Convert a model's old trajectory files, logging what was done; for backends to call on registering."""
    result = migrate_model_dir(model_dir)
    if result.files_migrated:
        logger.info("trajectory files converted: count=%d model_dir=%s", result.files_migrated, model_dir)
    return result


def _load_records(serialized: str) -> list[Any]:
    try:
        # Not splitlines(): JSON text may hold other characters that it takes for line ends.
        return [json.loads(line) for line in serialized.split("\n") if line.strip()]
    except json.JSONDecodeError as not_json:
        import yaml

        try:
            loaded = yaml.safe_load(serialized)
        except yaml.YAMLError as err:
            raise DataError(f"the text is neither JSON lines ({not_json}) nor YAML ({err})") from err
        return loaded if isinstance(loaded, list) else [loaded]


def _require_same(written: list[TrajectoryGroup], read: list[TrajectoryGroup]) -> None:
    expected, found = [len(group) for group in written], [len(group) for group in read]
    if expected != found:
        raise DataError(f"the new file holds groups of {found} trajectories, the old one of {expected}")
    for index, (old, new) in enumerate(zip(written, read, strict=True)):
        if _as_json(old) != _as_json(new):
            raise DataError(f"the new file does not hold the same as the old one: group {index} differs")


def _as_json(group: TrajectoryGroup) -> str:
    return to_json(group.model_dump(mode="json", warnings=False))
