from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import art
from art.utils.benchmarking.load_trajectories import load_trajectories
from art.utils.trajectory_logging import write_trajectory_groups_parquet
from tests.support.conversations import make_choice, make_tool_call, make_trajectory

BASE = ["model", "split", "step", "reward", "group_number", "messages", "logs"]


def load(tmp_path: Path, **more: Any) -> pl.DataFrame:
    return asyncio.run(load_trajectories("mail", art_path=str(tmp_path), **more))


def log(tmp_path: Path, name: str, groups: list[art.TrajectoryGroup], *, split: str = "val", step: int = 0) -> None:
    model = art.Model(name=name, project="mail", base_path=str(tmp_path))
    asyncio.run(model.log(groups, split=split, step=step))


def test_every_trajectory_is_a_row_with_its_metrics_and_metadata(tmp_path: Path) -> None:
    call = make_choice(None, message={"tool_calls": [make_tool_call()]})
    first = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "q"}, call],
        reward=1.0,
        metrics={"right": True, "turns": 3},
        metadata={"id": 7, "note": None},
        logs=["l"],
    )
    group = art.TrajectoryGroup([first, make_trajectory(0.5)], metadata={"scenario": "s"}, metrics={"size": 2})
    log(tmp_path, "a", [group, art.TrajectoryGroup([make_trajectory(0.25)])], step=3)
    frame = load(tmp_path)
    assert frame.columns == [
        *BASE, "metric_right", "metric_turns", "group_metric_size", "metadata_id", "metadata_note",
        "group_metadata_scenario",
    ]  # fmt: skip
    rows = frame.to_dicts()
    assert [(r["model"], r["split"], r["step"], r["reward"], r["group_number"]) for r in rows] == [
        ("a", "val", 3, 1.0, 0),
        ("a", "val", 3, 0.5, 0),
        ("a", "val", 3, 0.25, 1),
    ]
    row = rows[0]
    assert (row["metric_right"], row["metric_turns"], row["group_metric_size"]) == (1.0, 3.0, 2.0)
    assert (row["metadata_id"], row["metadata_note"], row["group_metadata_scenario"]) == ("7", None, "s")
    assert rows[2]["metric_right"] is None
    assert row["logs"] == ["l"]
    question, answer = row["messages"]
    assert question == {"role": "user", "content": "q", "tool_calls": None, "trainable": False}
    assert (answer["role"], answer["trainable"], json.loads(answer["tool_calls"])) == (
        "assistant",
        True,
        [make_tool_call()],
    )
    assert frame.schema["metric_right"] == pl.Float64


def test_metric_that_is_no_number_loses_no_row(tmp_path: Path) -> None:
    odd: Any = {"answer": "text", "unknown": None, "many": [1]}
    trajectory = make_trajectory(0.5)
    trajectory.metrics = odd
    path = tmp_path / "mail" / "models" / "a" / "trajectories" / "val" / "0000.parquet"
    write_trajectory_groups_parquet(
        [art.TrajectoryGroup([trajectory, make_trajectory(1.0, metrics={"answer": 2})])], path
    )

    frame = load(tmp_path)

    assert frame["reward"].to_list() == [0.5, 1.0]
    assert frame["metric_answer"].to_list() == [None, 2.0]


def test_groups_are_numbered_apart_across_models_splits_steps_and_files(tmp_path: Path) -> None:
    group = art.TrajectoryGroup([make_trajectory(0.0), make_trajectory(1.0)])
    for name, split, step in [("a", "val", 0), ("a", "val", 10), ("a", "train", 10), ("b", "val", 0), ("a", "val", 10)]:
        log(tmp_path, name, [group], split=split, step=step)
    frame = load(tmp_path)
    keys = frame.select("model", "split", "step", "group_number").unique(maintain_order=True).rows()
    assert keys == [
        ("a", "train", 10, 0),
        ("a", "val", 0, 1),
        ("a", "val", 10, 2),
        ("a", "val", 10, 3),
        ("b", "val", 0, 4),
    ]
    assert frame.height == 10
    assert set(load(tmp_path, models=["b"])["model"]) == {"b"}


def test_unreadable_file_is_left_out_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log(tmp_path, "a", [art.TrajectoryGroup([make_trajectory(1.0)])])
    folder = tmp_path / "mail/models/a/trajectories/val"
    (folder / "0001.parquet").write_bytes(b"PAR1 broken")
    (folder / "notes.parquet").write_text("not a step")
    (folder / "0002.jsonl").write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path).height == 1
    assert "0001.parquet" in caplog.text
    assert "art migrate" in caplog.text


def test_nothing_found_is_an_empty_table_and_creates_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(tmp_path).columns == BASE
    assert load(tmp_path, models=["absent"]).is_empty()
    assert "absent" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_files_of_the_first_layout_are_read(tmp_path: Path) -> None:
    path = tmp_path / "mail/models/a/trajectories/train/0002.parquet"
    path.parent.mkdir(parents=True)
    absent = {"tool_calls": None, "tool_call_id": None}
    messages = [
        {"role": "user", "content": "q", **absent, "finish_reason": None, "choice_index": None},
        {"role": "assistant", "content": "a", **absent, "finish_reason": "stop", "choice_index": 0},
    ]
    table = pa.Table.from_pylist([{"reward": 0.5, "metrics": '{"m": 2}', "messages": messages}])
    pq.write_table(table, path)
    (row,) = load(tmp_path).to_dicts()
    assert (row["step"], row["reward"], row["metric_m"], row["logs"]) == (2, 0.5, 2.0, [])
    assert [message["trainable"] for message in row["messages"]] == [False, True]
