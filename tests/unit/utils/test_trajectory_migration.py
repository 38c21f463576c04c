"""Old trajectory files become parquet files, and nothing is lost when that fails."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from art.trajectories import History, Trajectory, TrajectoryGroup
from art.utils import trajectory_migration as migration
from art.utils.trajectory_logging import read_trajectory_groups_parquet
from tests.support.conversations import make_choice, make_trajectory

LINE: dict[str, Any] = {
    "trajectories": [
        {
            "messages_and_choices": [
                {"role": "user", "content": "line separator\u2028inside"},
                {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "a"}},
            ],
            "reward": 0.5,
            "metrics": {"turns": 2},
            "metadata": {"id": "s"},
            "logs": ["line"],
            "tools": None,
            "additional_histories": [{"messages_and_choices": [{"role": "user", "content": "h"}], "tools": None}],
        }
    ]
}
GROUP = TrajectoryGroup(
    [
        Trajectory(
            messages_and_choices=LINE["trajectories"][0]["messages_and_choices"],
            reward=0.5,
            metrics={"turns": 2},
            metadata={"id": "s"},
            logs=["line"],
            additional_histories=[History(messages_and_choices=[{"role": "user", "content": "h"}])],
        )
    ]
)


def content_of(groups: list[TrajectoryGroup]) -> list[Any]:
    return [group.model_dump() for group in groups]


def old_file(folder: Path, name: str = "0001.jsonl", text: str | None = None) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(LINE, ensure_ascii=False) + "\n" if text is None else text, encoding="utf-8")
    return path


def test_file_is_converted_and_removed(tmp_path: Path) -> None:
    source = old_file(tmp_path)
    size = source.stat().st_size
    result = migration.migrate_jsonl_to_parquet(source)
    target = tmp_path / "0001.parquet"
    assert (result.files_migrated, result.files_skipped, result.errors) == (1, 0, [])
    assert (result.bytes_before, result.bytes_after) == (size, target.stat().st_size)
    assert result.space_saved == size - target.stat().st_size
    assert content_of(read_trajectory_groups_parquet(target)) == content_of([GROUP])
    assert not source.exists()


def test_original_can_be_kept_and_is_then_skipped(tmp_path: Path) -> None:
    source = old_file(tmp_path)
    migration.migrate_jsonl_to_parquet(source, delete_original=False)
    assert source.exists()
    again = migration.migrate_jsonl_to_parquet(source)
    assert (again.files_migrated, again.files_skipped) == (0, 1)
    assert source.exists()


def test_dry_run_changes_nothing(tmp_path: Path) -> None:
    source = old_file(tmp_path)
    result = migration.migrate_jsonl_to_parquet(source, dry_run=True)
    assert (result.files_migrated, result.bytes_after) == (1, 0)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    "text", ['{"trajectories": [{"mess', '{"other": 1}\n', '{"trajectories": [{"reward": "x"}]}\n']
)
def test_file_that_cannot_be_converted_stays_and_is_reported(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = old_file(tmp_path, text=text)
    with caplog.at_level(logging.WARNING):
        result = migration.migrate_jsonl_to_parquet(source)
    assert result.files_migrated == 0
    assert str(source) in result.errors[0]
    assert str(source) in caplog.text
    assert list(tmp_path.iterdir()) == [source]


def test_full_disk_keeps_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = old_file(tmp_path)

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(migration, "write_trajectory_groups_parquet", fail)
    assert "disk full" in migration.migrate_jsonl_to_parquet(source).errors[0]
    assert source.exists()


def test_original_stays_if_the_new_file_holds_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = old_file(tmp_path)
    monkeypatch.setattr(migration, "read_trajectory_groups_parquet", lambda _: [])
    assert migration.migrate_jsonl_to_parquet(source).files_migrated == 0
    assert source.exists()


def test_folders_of_a_model_and_of_a_project(tmp_path: Path) -> None:
    for model in ("a", "b"):
        old_file(tmp_path / "mail" / "models" / model / "trajectories" / "val")
        old_file(tmp_path / "mail" / "models" / model / "trajectories" / "train", text="{half")
    seen: list[str] = []
    result = migration.migrate_all_models(tmp_path, "mail", progress_callback=seen.append)
    assert (result.files_migrated, len(result.errors), len(seen)) == (2, 2, 4)
    assert migration.migrate_model_dir(tmp_path / "mail" / "models" / "a").errors != []
    assert migration.migrate_all_models(tmp_path, "none").files_migrated == 0
    assert migration.migrate_trajectories_dir(tmp_path / "none").files_migrated == 0
    assert not (tmp_path / "none").exists()


def test_registering_converts(tmp_path: Path) -> None:
    source = old_file(tmp_path / "trajectories" / "val")
    assert migration.auto_migrate_on_register(tmp_path).files_migrated == 1
    assert source.with_suffix(".parquet").exists()
    assert not source.exists()


def test_results_add_up() -> None:
    left = migration.MigrationResult(files_migrated=1, bytes_before=100, bytes_after=20, errors=["a"])
    total = left + migration.MigrationResult(files_skipped=2, bytes_before=20, bytes_after=10, errors=["b"])
    assert (total.files_migrated, total.files_skipped, total.errors) == (1, 2, ["a", "b"])
    assert (total.compression_ratio, total.space_saved) == (4.0, 90)
    assert left.errors == ["a"]
    assert migration.MigrationResult().compression_ratio == 0.0


def test_text_form_comes_back_without_logprobs() -> None:
    group = TrajectoryGroup(
        [make_trajectory(1.0, tokens=2, metrics={"a": True}, initial_policy_version=3)],
        exceptions=[ValueError("failed")],
        metadata={"id": 1},
        metrics={"d": 0.5},
        logs=["g"],
    )
    text = migration.serialize_trajectory_groups([group, TrajectoryGroup([make_trajectory(2.0)])])
    assert len(text.split("\n")) == 2
    first, second = migration.deserialize_trajectory_groups(text)
    expected = copy.deepcopy(group)
    expected.trajectories[0].messages_and_choices[1].logprobs = None  # type: ignore[union-attr]
    assert content_of([first]) == content_of([expected])
    assert second.trajectories[0].reward == 2.0


def test_serialising_leaves_the_callers_objects_alone() -> None:
    message: Any = {"role": "assistant", "content": "x", "logprobs": {"content": []}}
    trajectory = Trajectory(messages_and_choices=[message, make_choice("y", tokens=1)])
    fields = migration.trajectory_to_dict(trajectory)
    assert "logprobs" not in fields["messages_and_choices"][0]
    assert "logprobs" not in fields["messages_and_choices"][1]
    assert message["logprobs"] == {"content": []}
    assert trajectory.messages_and_choices[1].logprobs is not None  # type: ignore[union-attr]


def test_yaml_of_the_oldest_releases() -> None:
    text = """
- trajectories:
  - messages_and_choices:
    - role: user
      content: hi
    reward: 1.5
"""
    ((trajectory,),) = migration.deserialize_trajectory_groups(text)
    assert (trajectory.reward, trajectory.messages_and_choices) == (1.5, [{"role": "user", "content": "hi"}])


def test_characters_that_only_look_like_line_ends_stay_inside_the_text() -> None:
    line = json.dumps(LINE, ensure_ascii=False)
    assert "\u2028" in line
    assert content_of(migration.deserialize_trajectory_groups(f"{line}\n{line}\n")) == content_of([GROUP, GROUP])


def test_text_that_is_neither_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON lines"):
        migration.deserialize_trajectory_groups("{a: [b")
