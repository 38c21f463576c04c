"""A folder takes another one's place at once, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from art import folders

ASIDE = ".aside-"


def make(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "content").write_text(content)
    return path


@pytest.fixture(params=[True, False], ids=["by exchange", "in two renames"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(folders, "exchange", lambda first, second: False)


@pytest.mark.usefixtures("_way")
def test_the_new_folder_is_there_and_the_old_one_gone(tmp_path: Path) -> None:
    target = tmp_path / "0001"
    for content in ("old", "new"):
        folders.put_in_place(make(tmp_path / "staged", content), target, ASIDE)
        assert (target / "content").read_text() == content
        assert os.listdir(tmp_path) == ["0001"]


@pytest.mark.usefixtures("_way")
def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    elsewhere = make(tmp_path / "elsewhere", "kept")
    target = tmp_path / "0001"
    target.symlink_to(elsewhere)
    folders.put_in_place(make(tmp_path / "staged", "new"), target, ASIDE)
    assert not target.is_symlink()
    assert (target / "content").read_text() == "new"
    assert (elsewhere / "content").read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["0001", "elsewhere"]


def test_neither_is_missing_at_any_moment(tmp_path: Path) -> None:
    one, other = make(tmp_path / "one", "1"), make(tmp_path / "other", "2")
    if not folders.exchange(one, other):
        pytest.skip("this file system cannot exchange names")
    assert [(path / "content").read_text() for path in (one, other)] == ["2", "1"]
    with pytest.raises(FileNotFoundError, match="absent"):
        folders.exchange(one, tmp_path / "absent")


def test_what_cannot_take_the_place_leaves_the_old_one_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make(tmp_path / "0001", "old")
    monkeypatch.setattr(folders, "exchange", lambda first, second: False)
    with pytest.raises(FileNotFoundError):
        folders.put_in_place(tmp_path / "absent", target, ASIDE)
    assert (target / "content").read_text() == "old"
    assert os.listdir(tmp_path) == ["0001"]
