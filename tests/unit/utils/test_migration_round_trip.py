"""Old trajectory files of any content: what they hold is in the new file, whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art.trajectories import TrajectoryGroup
from art.utils import trajectory_migration as migration
from art.utils.trajectory_logging import read_trajectory_groups_parquet
from tests.support.logged_groups import groups


def stored(groups: list[TrajectoryGroup]) -> list[Any]:
    """Give all that old files can hold of groups: they never had logprobs."""
    return [json.loads(line) for line in migration.serialize_trajectory_groups(groups).split("\n") if line]


def write_old(records: list[Any], suffix: str, path: Path) -> None:
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    else:
        path.write_text(yaml.safe_dump(records))


@pytest.mark.parametrize("suffix", [".jsonl", ".yaml"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(written=st.lists(groups, min_size=1, max_size=2))
def test_nothing_is_lost_on_the_way_to_parquet(
    suffix: str, tmp_path_factory: pytest.TempPathFactory, written: list[TrajectoryGroup]
) -> None:
    folder = tmp_path_factory.mktemp("model") / "trajectories" / "train"
    folder.mkdir(parents=True)
    old = folder / f"0003{suffix}"
    records = stored(written)
    write_old(records, suffix, old)

    result = migration.auto_migrate_on_register(folder.parents[1])

    assert (result.files_migrated, result.errors) == (1, [])
    assert not old.exists()
    assert stored(read_trajectory_groups_parquet(folder / "0003.parquet")) == records


def test_original_stays_if_the_new_file_holds_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "0001.jsonl"
    record = {"trajectories": [{"messages_and_choices": [], "reward": 0.5}]}
    old.write_text(json.dumps(record))
    read = migration.read_trajectory_groups_parquet

    def misread(path: Path) -> list[TrajectoryGroup]:
        found = read(path)
        found[0].trajectories[0].reward = 0.25
        return found

    monkeypatch.setattr(migration, "read_trajectory_groups_parquet", misread)

    result = migration.migrate_jsonl_to_parquet(old)

    assert result.files_migrated == 0
    assert "group 0 differs" in result.errors[0]
    assert old.exists()


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "settings.yaml").write_text("colour: red")

    result = migration.migrate_trajectories_dir(tmp_path)

    assert (result.files_migrated, len(result.errors)) == (0, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "settings.yaml"]
