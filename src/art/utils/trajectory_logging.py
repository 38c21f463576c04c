"""Trajectory groups in parquet files: one file for each split and step, one row for each trajectory.

The column `messages` is for reading by people and other programs. The column `messages_and_choices` holds the same
conversation whole, as JSON: Choices with logprobs, content that is a list, fields that `messages` has no place for.
Groups without trajectories have no row; they are kept in the file's metadata.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.conversation import is_choice
from art.errors import DataError, MissingDependencyError
from art.trajectories import History, Trajectory, TrajectoryGroup
from art.utils.atomic_files import create_first_free, replacing
from art.utils.trajectory_codec import entry_to_dict, make_group, to_json, with_stored_facts

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

LAYOUT_VERSION = 2
_VERSION_KEY = b"art:layout_version"
_EMPTY_GROUPS_KEY = b"art:empty_groups"


def write_trajectory_groups_parquet(trajectory_groups: list[TrajectoryGroup], path: str | Path) -> None:
    """Write groups to a file, replacing it in one step. Without trajectories the file has no rows."""
    with replacing(path) as temporary:
        _write_table(trajectory_groups, temporary)


def log_trajectory_groups(trajectory_groups: list[TrajectoryGroup], split_dir: Path, step: int) -> Path:
    """Write groups of one split and step to a file of their own.

    Returns:
        `{step:04d}.parquet`; where that exists already, `{step:04d}.1.parquet` and so on.
    """
    first = split_dir / f"{step:04d}.parquet"
    later = (split_dir / f"{step:04d}.{number}.parquet" for number in itertools.count(1))
    path = create_first_free(itertools.chain([first], later), lambda target: _write_table(trajectory_groups, target))
    if path != first:
        logger.warning("trajectories of this step were logged before; both kept: step=%d new_file=%s", step, path)
    return path


def read_trajectory_groups_parquet(path: str | Path) -> list[TrajectoryGroup]:
    """Read the groups of a file.

    Files written here come back whole. Those of older layouts hold plain messages instead of Choices.

    Raises:
        DataError: The file was written by a later version of this package.
    """
    pq = _import_parquet()
    with pq.ParquetFile(path) as file:
        table = file.read()
    metadata = table.schema.metadata or {}
    version = int(metadata.get(_VERSION_KEY, b"1"))
    if version > LAYOUT_VERSION:
        raise DataError(
            f"{path} has layout version {version}, this package knows {LAYOUT_VERSION}; read it with a newer version"
        )
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        groups.setdefault(row.get("group_index") or 0, []).append(row)
    built = {index: _group_from_rows(rows) for index, rows in groups.items()}
    for empty in json.loads(metadata.get(_EMPTY_GROUPS_KEY, b"[]")):
        index = empty.pop("group_index")
        built[index] = make_group([], **empty)
    return [built[index] for index in sorted(built)]


def _import_parquet() -> Any:
    try:
        import pyarrow.parquet as pq
    except ImportError as err:
        raise MissingDependencyError("pyarrow", needed_for="reading and writing trajectories", extra=None) from err
    return pq


# Writing ----------------------------------------------------------------------------------------------------


def _write_table(groups: list[TrajectoryGroup], path: Path) -> None:
    pq = _import_parquet()
    import pyarrow as pa

    schema = _schema().with_metadata(
        {
            _VERSION_KEY: str(LAYOUT_VERSION).encode(),
            _EMPTY_GROUPS_KEY: to_json(list(_empty_groups(groups))).encode(),
        }
    )
    rows = [row for index, group in enumerate(groups) for row in _rows(index, group)]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")


def _schema() -> pa.Schema:
    import pyarrow as pa

    message = pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("tool_calls", pa.string()),
            ("tool_call_id", pa.string()),
            ("trainable", pa.bool_()),
        ]
    )
    return pa.schema(
        [
            ("group_index", pa.int64()),
            ("group_metadata", pa.string()),
            ("group_metrics", pa.string()),
            ("group_logs", pa.list_(pa.string())),
            ("reward", pa.float64()),
            ("metrics", pa.string()),
            ("metadata", pa.string()),
            ("tools", pa.string()),
            ("logs", pa.list_(pa.string())),
            ("messages", pa.list_(message)),
            ("messages_and_choices", pa.string()),
            ("additional_histories", pa.string()),
            ("initial_policy_version", pa.int64()),
            ("final_policy_version", pa.int64()),
            ("exceptions", pa.string()),
        ]
    )


def _empty_groups(groups: list[TrajectoryGroup]) -> Iterator[dict[str, Any]]:
    for index, group in enumerate(groups):
        if not group.trajectories:
            yield {
                "group_index": index,
                "exceptions": [exception.model_dump() for exception in group.exceptions],
                "metadata": group.metadata,
                "metrics": group.metrics,
                "logs": group.logs,
            }


def _rows(group_index: int, group: TrajectoryGroup) -> Iterator[dict[str, Any]]:
    of_group = {
        "group_index": group_index,
        "group_metadata": _json_or_null(group.metadata),
        "group_metrics": _json_or_null(group.metrics),
        "group_logs": [_utf8(str(line)) for line in group.logs] or None,
        "exceptions": _json_or_null([exception.model_dump() for exception in group.exceptions]),
    }
    for trajectory in group.trajectories:
        entries = trajectory.messages_and_choices
        histories = trajectory.additional_histories
        yield of_group | {
            "reward": float(trajectory.reward),
            "metrics": _json_or_null(trajectory.metrics),
            "metadata": _json_or_null(trajectory.metadata),
            "tools": None if trajectory.tools is None else to_json(trajectory.tools),
            "logs": [_utf8(str(line)) for line in trajectory.logs] or None,
            "messages": [_message_row(entry) for entry in entries],
            "messages_and_choices": to_json([entry_to_dict(entry) for entry in entries]),
            "additional_histories": _json_or_null([_history_to_dict(history) for history in histories]),
            "initial_policy_version": trajectory.initial_policy_version,
            "final_policy_version": trajectory.final_policy_version,
        }


def _message_row(entry: Any) -> dict[str, Any]:
    message = entry_to_dict(entry.message) if is_choice(entry) else entry_to_dict(entry)
    content, tool_calls, tool_call_id = (message.get(name) for name in ("content", "tool_calls", "tool_call_id"))
    return {
        "role": _text_or_null(message.get("role")),
        "content": _text_or_null(content),
        "tool_calls": to_json(tool_calls) if tool_calls else None,
        "tool_call_id": _text_or_null(tool_call_id),
        "trainable": is_choice(entry),
    }


def _history_to_dict(history: History) -> dict[str, Any]:
    entries = [entry_to_dict(entry) for entry in history.messages_and_choices]
    return {"messages_and_choices": entries, "tools": history.tools}


def _json_or_null(value: Mapping[str, Any] | list[Any]) -> str | None:
    return to_json(value) if value else None


def _text_or_null(value: Any) -> str | None:
    if value is None:
        return None
    return _utf8(value) if isinstance(value, str) else to_json(value)


def _utf8(text: str) -> str:
    # Models produce halves of surrogate pairs, which a parquet string cannot hold.
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


# Reading ----------------------------------------------------------------------------------------------------


def _group_from_rows(rows: list[dict[str, Any]]) -> TrajectoryGroup:
    first = rows[0]
    return make_group(
        [_trajectory(row) for row in rows],
        exceptions=_parse(first.get("exceptions")),
        metadata=_parse(first.get("group_metadata")),
        metrics=_parse(first.get("group_metrics")),
        logs=first.get("group_logs"),
    )


def _trajectory(row: dict[str, Any]) -> Trajectory:
    entries = _parse(row.get("messages_and_choices"))
    if entries is None:
        entries = [_plain_message(message) for message in row.get("messages") or []]
    histories = _parse(row.get("additional_histories")) or []
    trajectory = Trajectory(
        messages_and_choices=entries,
        tools=_parse(row.get("tools")),
        additional_histories=[_history(history) for history in histories],
        reward=0.0 if row.get("reward") is None else row["reward"],
        initial_policy_version=row.get("initial_policy_version"),
        final_policy_version=row.get("final_policy_version"),
        logs=row.get("logs") or [],
    )
    return with_stored_facts(trajectory, metrics=_parse(row.get("metrics")), metadata=_parse(row.get("metadata")))


def _history(stored: Mapping[str, Any] | str) -> History:
    fields = json.loads(stored) if isinstance(stored, str) else stored
    return History(messages_and_choices=fields["messages_and_choices"], tools=fields.get("tools"))


def _plain_message(stored: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": stored["role"], "content": stored.get("content")}
    if stored.get("tool_calls"):
        message["tool_calls"] = _parse(stored["tool_calls"])
    if stored.get("tool_call_id"):
        message["tool_call_id"] = stored["tool_call_id"]
    return message


def _parse(text: Any) -> Any:
    return json.loads(text) if isinstance(text, str) else text
