"""Trajectory files: what is written comes back whole, and older layouts can be read."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

from art.errors import DataError
from art.trajectories import Trajectory, TrajectoryGroup
from art.utils.trajectory_logging import read_trajectory_groups_parquet, write_trajectory_groups_parquet
from tests.support.conversations import make_choice, make_tool_call, make_trajectory
from tests.support.logged_groups import TOOL, groups

CONTRACT_COLUMNS = {
    "group_index": pa.int64(),
    "group_metadata": pa.string(),
    "group_metrics": pa.string(),
    "group_logs": pa.list_(pa.string()),
    "reward": pa.float64(),
    "metrics": pa.string(),
    "metadata": pa.string(),
    "tools": pa.string(),
    "logs": pa.list_(pa.string()),
    "messages": pa.list_(
        pa.struct(
            [
                ("role", pa.string()),
                ("content", pa.string()),
                ("tool_calls", pa.string()),
                ("tool_call_id", pa.string()),
                ("trainable", pa.bool_()),
            ]
        )
    ),
}


def round_trip(groups: list[TrajectoryGroup], folder: Path) -> list[TrajectoryGroup]:
    write_trajectory_groups_parquet(groups, folder / "file.parquet")
    return read_trajectory_groups_parquet(folder / "file.parquet")


def without_start_times(groups: list[TrajectoryGroup]) -> list[Any]:
    """Everything but `start_time`, which is not stored; Choices stay objects, so that their type is compared too."""
    return [
        [
            [
                {name: getattr(trajectory, name) for name in Trajectory.model_fields if name != "start_time"}
                for trajectory in group.trajectories
            ],
            group.exceptions,
            group.metadata,
            group.metrics,
            group.logs,
        ]
        for group in groups
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(written=st.lists(groups, max_size=3))
def test_everything_comes_back(tmp_path_factory: pytest.TempPathFactory, written: list[TrajectoryGroup]) -> None:
    read = round_trip(written, tmp_path_factory.mktemp("parquet"))
    assert without_start_times(read) == without_start_times(written)


def test_choice_comes_back_as_a_choice_with_its_logprobs(tmp_path: Path) -> None:
    choice = make_choice("yes", tokens=2, token_ids=[5, 6], finish_reason="length")
    ((trajectory,),) = round_trip([TrajectoryGroup([Trajectory(messages_and_choices=[choice])])], tmp_path)
    (read,) = trajectory.messages_and_choices
    assert isinstance(read, Choice)
    assert read == choice
    assert read.logprobs is not None
    assert [token.logprob for token in read.logprobs.content or []] == [-0.5, -0.5]
    assert read.model_extra == {"token_ids": [5, 6]}


def test_choice_of_another_library_is_written_like_a_choice(tmp_path: Path) -> None:
    class Message(BaseModel):
        role: str
        content: str | None
        tool_calls: list[Any] | None = None

    class Choices(BaseModel):
        finish_reason: str
        index: int
        message: Message

    foreign: Any = Choices(finish_reason="stop", index=0, message=Message(role="assistant", content="hi"))
    ((trajectory,),) = round_trip([TrajectoryGroup([Trajectory(messages_and_choices=[foreign])])], tmp_path)
    assert trajectory.messages_and_choices == [make_choice("hi")]
    assert pq.read_table(tmp_path / "file.parquet")["messages"].to_pylist()[0][0]["trainable"] is True


def test_columns_that_other_programs_read(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    answer = make_choice(None, tokens=1, message={"tool_calls": [make_tool_call("look", '{"x": 1}', "c1")]})
    trajectory = Trajectory(
        messages_and_choices=[
            {"role": "user", "content": parts},  # type: ignore[list-item]
            answer,
            {"role": "tool", "content": "seen", "tool_call_id": "c1"},
            make_choice("done"),
        ],
        tools=[TOOL],  # type: ignore[list-item]
        reward=0.5,
        metrics={"turns": 2},
        logs=["line"],
    )
    group = TrajectoryGroup([trajectory, make_trajectory(1.0)], metadata={"id": "s"}, metrics={"d": 1}, logs=["g"])
    write_trajectory_groups_parquet([TrajectoryGroup([]), group], tmp_path / "file.parquet")
    table = pq.read_table(tmp_path / "file.parquet")
    schema = {name: table.schema.field(name).type for name in table.schema.names}
    assert {name: schema[name] for name in CONTRACT_COLUMNS} == CONTRACT_COLUMNS
    assert pq.ParquetFile(tmp_path / "file.parquet").metadata.row_group(0).column(0).compression == "ZSTD"
    first, second = table.to_pylist()
    assert (first["group_index"], second["group_index"]) == (1, 1)
    assert json.loads(first["group_metadata"]) == {"id": "s"}
    assert json.loads(first["group_metrics"]) == {"d": 1}
    assert (first["group_logs"], first["logs"], first["reward"]) == (["g"], ["line"], 0.5)
    assert json.loads(first["metrics"]) == {"turns": 2}
    assert first["metadata"] is None
    assert json.loads(first["tools"]) == [TOOL]
    asked, called, seen, done = first["messages"]
    assert json.loads(asked["content"]) == parts
    assert (called["role"], called["content"], called["trainable"]) == ("assistant", None, True)
    assert json.loads(called["tool_calls"])[0]["function"] == {"name": "look", "arguments": '{"x": 1}'}
    assert seen == {
        "role": "tool",
        "content": "seen",
        "tool_calls": None,
        "tool_call_id": "c1",
        "trainable": False,
    }
    assert (done["content"], done["trainable"]) == ("done", True)
    assert (second["tools"], second["logs"], second["exceptions"]) == (None, None, None)


def test_no_trajectories_make_a_file_without_rows(tmp_path: Path) -> None:
    write_trajectory_groups_parquet([], tmp_path / "new" / "file.parquet")
    table = pq.read_table(tmp_path / "new" / "file.parquet")
    assert table.num_rows == 0
    assert table.schema.field("messages").type == CONTRACT_COLUMNS["messages"]
    assert read_trajectory_groups_parquet(tmp_path / "new" / "file.parquet") == []


def test_half_surrogates_are_readable_in_columns_and_whole_in_the_choice(tmp_path: Path) -> None:
    group = TrajectoryGroup([Trajectory(messages_and_choices=[make_choice("a\ud83d")], logs=["b\ud83d"])])
    ((trajectory,),) = round_trip([group], tmp_path)
    assert trajectory.messages_and_choices == [make_choice("a\ud83d")]
    assert trajectory.logs == ["b\\ud83d"]
    (message,) = pq.read_table(tmp_path / "file.parquet")["messages"].to_pylist()[0]
    assert message["content"] == "a\\ud83d"


def test_values_foreign_to_json_do_not_stop_the_write(tmp_path: Path) -> None:
    message: Any = {"role": "user", "content": [{"type": "blob", "data": b"\xff", "where": Path("/x")}]}
    ((trajectory,),) = round_trip([TrajectoryGroup([Trajectory(messages_and_choices=[message])])], tmp_path)
    assert trajectory.messages_and_choices[0] == {
        "role": "user",
        "content": [{"type": "blob", "data": "_w==", "where": "/x"}],
    }


def test_numbers_of_other_libraries_come_back_as_numbers(tmp_path: Path) -> None:
    trajectory = make_trajectory()
    trajectory.reward = np.float32(0.5)
    given: dict[str, Any] = {
        "half": np.float32(0.5),
        "flag": np.bool_(True),
        "count": np.int64(3),
        "tensor": torch.tensor(1.5, requires_grad=True),
        "exact": Decimal("0.25"),
        "share": Fraction(3, 4),
    }
    trajectory.metrics, trajectory.metadata = dict(given), dict(given)
    group = TrajectoryGroup([trajectory])
    group.metrics, group.metadata = dict(given), dict(given)
    plain = {"half": 0.5, "flag": True, "count": 3, "tensor": 1.5, "exact": 0.25, "share": 0.75}

    (read,) = round_trip([group], tmp_path)

    assert [read.metrics, read.metadata] == [plain, plain]
    assert [read.trajectories[0].metrics, read.trajectories[0].metadata] == [plain, plain]
    assert read.trajectories[0].reward == 0.5
    assert type(read.trajectories[0].metrics["flag"]) is bool


def test_what_a_script_assigned_unchecked_is_readable(tmp_path: Path) -> None:
    trajectory = make_trajectory()
    metadata: Any = {"game": {"moves": [1, 2]}, "path": Path("/x"), "nothing": None}
    metrics: Any = {"answer": "text", "unknown": None}
    trajectory.metadata, trajectory.metrics = metadata, metrics
    trajectory.log({"turn": 1})  # type: ignore[arg-type]

    ((read,),) = round_trip([TrajectoryGroup([trajectory])], tmp_path)

    assert read.metadata == {"game": {"moves": [1, 2]}, "path": "/x", "nothing": None}
    assert read.metrics == metrics
    assert read.logs == ["{'turn': 1}"]


def test_entry_that_is_no_message_is_named(tmp_path: Path) -> None:
    trajectory = make_trajectory()
    trajectory.messages_and_choices.append("hello")  # type: ignore[arg-type]

    with pytest.raises(DataError, match=r"Choices, not a str"):
        round_trip([TrajectoryGroup([trajectory])], tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_writing_leaves_the_trajectory_alone(tmp_path: Path) -> None:
    trajectory = make_trajectory(1.0, tokens=2)
    message: Any = {"role": "assistant", "content": "x", "logprobs": [1]}
    trajectory.messages_and_choices.append(message)
    write_trajectory_groups_parquet([TrajectoryGroup([trajectory])], tmp_path / "file.parquet")
    assert message == {"role": "assistant", "content": "x", "logprobs": [1]}
    assert trajectory.messages_and_choices[1].logprobs is not None  # type: ignore[union-attr]


def test_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    write_trajectory_groups_parquet([TrajectoryGroup([make_trajectory()])], path)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"art:layout_version": b"3"}), path)
    with pytest.raises(ValueError, match="version 3"):
        read_trajectory_groups_parquet(path)


def test_file_is_read_whatever_its_path_looks_like(tmp_path: Path) -> None:
    path = tmp_path / "split=val'; --" / "0001.parquet"
    write_trajectory_groups_parquet([TrajectoryGroup([make_trajectory(0.25)])], path)
    ((trajectory,),) = read_trajectory_groups_parquet(str(path))
    assert trajectory.reward == 0.25


def message_struct(**fields: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct(list(fields.items())))


OLD_ROW = {
    "group_index": 0,
    "reward": 1.5,
    "metrics": '{"turns": 2}',
    "metadata": None,
    "tools": json.dumps([TOOL]),
    "logs": ["line"],
}
OLD_SCHEMA = [
    ("group_index", pa.int64()),
    ("reward", pa.float64()),
    ("metrics", pa.string()),
    ("metadata", pa.string()),
    ("tools", pa.string()),
    ("logs", pa.list_(pa.string())),
]


def write_old(path: Path, rows: list[dict[str, Any]], *columns: tuple[str, pa.DataType]) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema([*OLD_SCHEMA, *columns])), path)


def test_layout_with_five_message_fields_gives_plain_messages(tmp_path: Path) -> None:
    text = pa.string()
    struct = message_struct(role=text, content=text, tool_calls=text, tool_call_id=text, trainable=pa.bool_())
    messages = [
        {"role": "user", "content": "[1]", "tool_calls": None, "tool_call_id": None, "trainable": False},
        {"role": "assistant", "content": None, "tool_calls": '[{"id": "c"}]', "tool_call_id": None, "trainable": True},
        {"role": "tool", "content": "ok", "tool_calls": None, "tool_call_id": "c", "trainable": False},
    ]
    rows = [{**OLD_ROW, "messages": messages}, {**OLD_ROW, "group_index": 2, "messages": []}]
    write_old(tmp_path / "old.parquet", rows, ("messages", struct))
    first, second = read_trajectory_groups_parquet(tmp_path / "old.parquet")
    (trajectory,) = first
    assert trajectory.messages_and_choices == [
        {"role": "user", "content": "[1]"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
        {"role": "tool", "content": "ok", "tool_call_id": "c"},
    ]
    assert (trajectory.reward, trajectory.metrics, trajectory.logs) == (1.5, {"turns": 2}, ["line"])
    assert trajectory.tools == [TOOL]
    assert (first.metadata, first.metrics, first.logs, first.exceptions) == ({}, {}, [], [])
    assert len(second) == 1


def test_layout_with_six_message_fields_and_histories(tmp_path: Path) -> None:
    text = pa.string()
    struct = message_struct(
        role=text,
        content=text,
        tool_calls=text,
        tool_call_id=text,
        finish_reason=text,
        choice_index=pa.int64(),
    )
    message = {"role": "assistant", "content": "hi", "finish_reason": "stop", "choice_index": 0}
    histories = json.dumps([{"messages_and_choices": [{"role": "user", "content": "more"}], "tools": None}])
    rows = [{**OLD_ROW, "messages": [message], "additional_histories": histories}]
    write_old(tmp_path / "old.parquet", rows, ("messages", struct), ("additional_histories", text))
    ((trajectory,),) = read_trajectory_groups_parquet(tmp_path / "old.parquet")
    assert trajectory.messages_and_choices == [{"role": "assistant", "content": "hi"}]
    (history,) = trajectory.additional_histories
    assert history.messages_and_choices == [{"role": "user", "content": "more"}]
