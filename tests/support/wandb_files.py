"""Read what W&B keeps on the disk in its offline mode."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 32768
_FILE_HEADER_BYTES = 7
_RECORD_HEADER = struct.Struct("<IHB")
_FIRST, _MIDDLE, _LAST, _FULL = 2, 3, 4, 1


@dataclass
class OfflineRun:
    """One run.

    Attributes:
        name: Its display name.
        run_id: Its id.
        project: Its project.
        config: Its configuration.
        rows: What was logged, without W&B's own columns.
        step_metrics: Metric or pattern → the metric on its x-axis.
    """

    name: str = ""
    run_id: str = ""
    project: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    step_metrics: dict[str, str] = field(default_factory=dict)


def read_offline_runs(folder: Path) -> dict[str, OfflineRun]:
    """Read all runs below a folder, by name; one that was resumed has the rows of all its files."""
    runs: dict[str, OfflineRun] = {}
    for path in sorted(folder.rglob("*.wandb")):
        run = _read_run(path)
        rows = runs[run.name].rows if run.name in runs else []
        runs[run.name] = replace(run, rows=[*rows, *run.rows])
    return runs


def _read_run(path: Path) -> OfflineRun:
    from wandb.proto import wandb_internal_pb2

    run = OfflineRun()
    for content in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.name, run.run_id, run.project = record.run.display_name, record.run.run_id, record.run.project
            run.config |= _items(record.run.config.update)
        elif kind == "config":
            run.config |= _items(record.config.update)
        elif kind == "history":
            row = _items(record.history.item)
            run.rows.append({key: value for key, value in row.items() if not key.startswith("_")})
        elif kind == "metric" and record.metric.step_metric:
            run.step_metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
    run.config.pop("_wandb", None)
    return run


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items if item.value_json}


def _records(data: bytes) -> Iterator[bytes]:
    """Split a log in LevelDB's format, after W&B's own header."""
    place, parts = _FILE_HEADER_BYTES, b""
    while place + _RECORD_HEADER.size <= len(data):
        left_in_block = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left_in_block < _RECORD_HEADER.size:
            place += left_in_block
            continue
        _, length, kind = _RECORD_HEADER.unpack_from(data, place)
        content = data[place + _RECORD_HEADER.size : place + _RECORD_HEADER.size + length]
        place += _RECORD_HEADER.size + length
        parts = content if kind in (_FULL, _FIRST) else parts + content
        if kind in (_FULL, _LAST):
            yield parts
