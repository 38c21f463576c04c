"""The `art` command."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from art._version import __version__
from art.cli import app
from art.utils.trajectory_logging import read_trajectory_groups_parquet


def old_file(folder: Path) -> Path:
    path = folder / "trajectories" / "train" / "0003.jsonl"
    path.parent.mkdir(parents=True)
    messages = [{"role": "user", "content": "hi"}]
    path.write_text(json.dumps({"trajectories": [{"messages_and_choices": messages, "reward": 0.5}]}) + "\n")
    return path


def test_version_names_the_package() -> None:
    result = CliRunner().invoke(app, ["version"])
    assert result.exit_code == 0
    assert f"openpipe-art {__version__}" in result.output


def test_migrate_converts_a_model_and_says_so(tmp_path: Path) -> None:
    path = old_file(tmp_path)
    result = CliRunner().invoke(app, ["migrate", str(tmp_path), "--dry-run"])
    assert "1 files would be migrated" in result.output
    assert path.exists()
    result = CliRunner().invoke(app, ["migrate", str(tmp_path)])
    assert (result.exit_code, path.exists()) == (0, False)
    (group,) = read_trajectory_groups_parquet(path.with_suffix(".parquet"))
    assert group.trajectories[0].reward == 0.5


def test_migrate_fails_on_what_it_cannot_read(tmp_path: Path) -> None:
    path = old_file(tmp_path)
    path.write_text("{broken")
    result = CliRunner().invoke(app, ["migrate", str(tmp_path), "--verbose"])
    assert result.exit_code == 1
    assert path.exists()
    assert CliRunner().invoke(app, ["migrate", str(tmp_path / "absent")]).exit_code == 1
