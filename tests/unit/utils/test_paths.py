"""Where things lie, and that reading makes no folders."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import art.utils.get_repo_root_path as root_module
from art.model import Model, TrainableModel
from art.utils import get_model_step, output_dirs
from art.utils.get_model_step import get_step_from_dir


def add_checkpoint(model_dir: Path, step: int) -> None:
    folder = model_dir / "checkpoints" / f"{step:04d}"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))


def test_layout() -> None:
    model = Model(name="agent", project="mail")
    assert output_dirs.get_models_dir("mail", "/data") == "/data/mail/models"
    assert output_dirs.get_model_dir(model, "/data") == "/data/mail/models/agent"
    assert output_dirs.get_output_dir_from_model_properties("mail", "agent", "/data") == "/data/mail/models/agent"
    assert output_dirs.get_step_checkpoint_dir("/data/m", 7) == "/data/m/checkpoints/0007"
    assert output_dirs.get_step_checkpoint_dir("/data/m", 12345) == "/data/m/checkpoints/12345"
    assert output_dirs.get_trajectories_dir("/data/m") == "/data/m/trajectories"
    assert output_dirs.get_trajectories_split_dir("/data/m", "val") == "/data/m/trajectories/val"


def test_default_path_is_at_the_root_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "repo" / "env" / "site-packages" / "art" / "utils"
    package.mkdir(parents=True)
    monkeypatch.setattr(root_module, "__file__", str(package / "get_repo_root_path.py"))
    assert root_module.get_repo_root_path() == "."
    (tmp_path / "repo" / ".git").mkdir()
    assert root_module.get_repo_root_path() == str(tmp_path / "repo")
    assert output_dirs.get_default_art_path() == str(tmp_path / "repo" / ".art")


def test_step_is_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    model = TrainableModel(name="agent", project="mail", base_model="tiny")
    model_dir = tmp_path / "mail" / "models" / "agent"
    for step in (0, 9, 10000):
        add_checkpoint(model_dir, step)
    assert get_step_from_dir(str(model_dir)) == 10000
    assert get_model_step(model, str(tmp_path)) == 10000
    assert get_model_step(Model(name="agent", project="mail"), str(tmp_path)) == 0


def test_reading_a_step_makes_no_folder(tmp_path: Path) -> None:
    assert get_step_from_dir(str(tmp_path / "none")) == 0
    assert list(tmp_path.iterdir()) == []
