"""Read what a project's models logged into one table."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from art.errors import MissingDependencyError
from art.utils.output_dirs import get_models_dir

if TYPE_CHECKING:
    import polars as pl

logger = logging.getLogger(__name__)

# A step that was logged again has a number between step and suffix.
_FILE_NAME = re.compile(r"(?P<step>\d+)(\.\d+)?\.parquet")
_WANTED_COLUMNS = (
    "group_index", "group_metadata", "group_metrics", "reward", "metrics", "metadata", "messages", "logs",
)  # fmt: skip
_NUMBERS = {"metrics": "metric_", "group_metrics": "group_metric_"}
_TEXTS = {"metadata": "metadata_", "group_metadata": "group_metadata_"}


async def load_trajectories(
    project_name: str, models: list[str] | None = None, debug: bool = False, art_path: str | None = None
) -> pl.DataFrame:
    """Read every trajectory that models of a project logged.

    A file that cannot be read is left out and reported in the log.

    Args:
        project_name: The project.
        models: Which models; None: all that have a folder.
        debug: Report more of each file that cannot be read.
        art_path: Where runs are kept; None: the default place.

    Returns:
        One row for each trajectory: `model`, `split`, `step`, `reward`, `group_number` (another one for each group),
        `messages` (`role`, `content`, `tool_calls`, `trainable`), `logs`, and a column for each metric
        (`metric_{name}`), piece of metadata (`metadata_{name}`, text), and those of the groups (`group_metric_{name}`,
        `group_metadata_{name}`). No rows where nothing was found.
    """
    try:
        import polars  # noqa: F401  # named here, so that the error comes before the reading
    except ImportError as err:
        raise MissingDependencyError("polars", needed_for="art.utils.benchmarking", extra=None) from err
    return await asyncio.to_thread(_load, Path(get_models_dir(project_name, art_path)), models, debug)


class _TrajectoryFile(NamedTuple):
    model: str
    split: str
    step: int
    path: Path


def _load(models_dir: Path, models: list[str] | None, debug: bool) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    groups = 0
    for file in _files(models_dir, models):
        try:
            found = list(_read(file, first_group=groups))
        except Exception as err:  # pyarrow and JSON have a dozen kinds for a broken file
            logger.warning(
                "trajectory file left out, it cannot be read: path=%s error=%r", file.path, err, exc_info=debug
            )
            continue
        rows += found
        groups = max((row["group_number"] + 1 for row in found), default=groups)
    return _frame(rows)


def _files(models_dir: Path, models: list[str] | None) -> Iterator[_TrajectoryFile]:
    names = _folders(models_dir) if models is None else list(dict.fromkeys(models))
    for model in names:
        trajectories_dir = models_dir / model / "trajectories"
        if not trajectories_dir.is_dir():
            if models is not None:
                logger.warning("model %s has no trajectories: there is no folder %s", model, trajectories_dir)
            continue
        for split in _folders(trajectories_dir):
            paths = sorted((trajectories_dir / split).iterdir())
            old = sum(path.suffix in (".jsonl", ".yaml") for path in paths)
            if old:
                logger.warning(
                    "%d files of an older release left out; `art migrate` turns them: %s", old, paths[0].parent
                )
            matches = [(match, path) for path in paths if (match := _FILE_NAME.fullmatch(path.name))]
            for match, path in sorted(matches, key=lambda pair: (int(pair[0]["step"]), pair[1].name)):
                yield _TrajectoryFile(model, split, int(match["step"]), path)


def _folders(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []


def _read(file: _TrajectoryFile, *, first_group: int) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file.path) as parquet:
        present = set(parquet.schema_arrow.names)
        table = parquet.read(columns=[name for name in _WANTED_COLUMNS if name in present])
    numbers: dict[int, int] = {}
    for stored in table.to_pylist():
        group_index = stored.get("group_index") or 0
        row: dict[str, Any] = {
            "model": file.model,
            "split": file.split,
            "step": file.step,
            "reward": stored.get("reward"),
            "group_number": numbers.setdefault(group_index, first_group + len(numbers)),
            "messages": [_message(message) for message in stored.get("messages") or []],
            "logs": stored.get("logs") or [],
        }
        for column, prefix in _NUMBERS.items():
            for name, value in _parse(stored.get(column)).items():
                row[prefix + name] = _number_or_null(value)
        for column, prefix in _TEXTS.items():
            for name, value in _parse(stored.get(column)).items():
                row[prefix + name] = None if value is None else str(value)
        yield row


def _message(stored: dict[str, Any]) -> dict[str, Any]:
    # Files of the first layout tell a Choice by its finish reason.
    trainable = stored["trainable"] if "trainable" in stored else stored.get("finish_reason") is not None
    return {name: stored.get(name) for name in ("role", "content", "tool_calls")} | {"trainable": bool(trainable)}


def _number_or_null(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):  # a script may assign anything to its metrics
        return None


def _parse(text: str | None) -> dict[str, Any]:
    return json.loads(text) if text else {}


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    import polars as pl

    message = pl.Struct({"role": pl.String, "content": pl.String, "tool_calls": pl.String, "trainable": pl.Boolean})
    schema: dict[str, Any] = {
        "model": pl.String,
        "split": pl.String,
        "step": pl.Int64,
        "reward": pl.Float64,
        "group_number": pl.Int64,
        "messages": pl.List(message),
        "logs": pl.List(pl.String),
    }
    kinds = {**dict.fromkeys(_NUMBERS.values(), pl.Float64), **dict.fromkeys(_TEXTS.values(), pl.String)}
    names = {name for row in rows for name in row} - set(schema)
    for prefix, kind in kinds.items():
        schema |= {name: kind for name in sorted(names) if name.startswith(prefix)}
    columns = {name: pl.Series(name, [row.get(name) for row in rows], dtype=kind) for name, kind in schema.items()}
    return pl.DataFrame(columns)
