"""Files appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from art.utils import atomic_files


def numbered(folder: Path) -> list[Path]:
    return [folder / f"{number}.txt" for number in range(3)]


def test_text_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    atomic_files.write_text(path, "first")
    atomic_files.write_text(path, "zweites €")
    assert path.read_bytes() == "zweites €".encode()
    assert os.listdir(path.parent) == ["file.txt"]


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail_half_way() -> None:
        with atomic_files.replacing(path) as temporary:
            temporary.write_text("ha")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_half_way()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_mode_holds_from_the_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    with atomic_files.replacing(path, mode=0o600) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    atomic_files.write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


@pytest.mark.parametrize("has_hard_links", [True, False])
def test_new_file_takes_the_first_free_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_hard_links: bool
) -> None:
    if not has_hard_links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError("no links here")))
    for number in range(3):
        path = atomic_files.create_first_free(numbered(tmp_path), lambda target: target.write_text(f"content {number}"))  # noqa: B023
        assert path == tmp_path / f"{number}.txt"
    assert [path.read_text() for path in numbered(tmp_path)] == ["content 0", "content 1", "content 2"]
    assert len(os.listdir(tmp_path)) == 3
