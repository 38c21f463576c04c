"""A checkpoint is there whole or not at all."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from art import checkpoints
from art.errors import CheckpointError, CheckpointIncompleteError, CheckpointNotFoundError


def write_adapter(folder: Path, *, value: bytes = b"\0\0\x80?") -> None:
    """Write the smallest adapter: one float32."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + value)
    (folder / "adapter_config.json").write_text('{"r": 8}')


def save(model_dir: Path, step: int) -> Path:
    with checkpoints.stage_checkpoint(model_dir, step) as staging:
        write_adapter(staging)
    return checkpoints.checkpoint_dir(model_dir, step)


def weights_of(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


def test_reading_creates_nothing(tmp_path: Path) -> None:
    assert checkpoints.list_steps(tmp_path / "absent") == []
    assert checkpoints.newest_step(tmp_path / "absent") is None
    assert checkpoints.next_step(tmp_path / "absent") == 0
    assert not (tmp_path / "absent").exists()


def test_steps_are_compared_as_numbers(tmp_path: Path) -> None:
    for step in (9999, 10000, 3):
        save(tmp_path, step)
    (checkpoints.checkpoints_dir(tmp_path) / "notes").mkdir()
    assert checkpoints.list_steps(tmp_path) == [3, 9999, 10000]
    assert checkpoints.newest_step(tmp_path) == 10000


def test_nothing_is_visible_before_it_is_complete(tmp_path: Path) -> None:
    with checkpoints.stage_checkpoint(tmp_path, 1) as staging:
        write_adapter(staging)
        assert checkpoints.list_steps(tmp_path) == []
        assert checkpoints.next_step(tmp_path) == 0
    assert checkpoints.list_steps(tmp_path) == [1]


def test_failing_writer_leaves_nothing(tmp_path: Path) -> None:
    def write_and_fail() -> None:
        with checkpoints.stage_checkpoint(tmp_path, 1) as staging:
            write_adapter(staging)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write_and_fail()
    assert list(checkpoints.checkpoints_dir(tmp_path).iterdir()) == []


@pytest.mark.parametrize("broken", ["adapter_config.json", "adapter_model.safetensors"])
def test_incomplete_staging_is_refused(tmp_path: Path, broken: str) -> None:
    def write_part() -> None:
        with checkpoints.stage_checkpoint(tmp_path, 1) as staging:
            write_adapter(staging)
            (staging / broken).unlink()

    with pytest.raises(CheckpointIncompleteError) as caught:
        write_part()
    assert caught.value.missing == [broken]
    assert checkpoints.list_steps(tmp_path) == []


def test_cut_off_weights_are_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    weights = newest / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert checkpoints.newest_step(tmp_path) == 1
    assert checkpoints.list_steps(tmp_path) == [1]
    assert checkpoints.next_step(tmp_path) == 3
    with pytest.raises(CheckpointIncompleteError):
        checkpoints.require_checkpoint(tmp_path, 2)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("adapter_model.safetensors", weights_of(b"[]")),
        ("adapter_model.safetensors", weights_of(b"5")),
        ("adapter_model.safetensors", weights_of(b'{"w": "of another kind"}')),
        ("adapter_model.safetensors", weights_of(b'{"w": {"data_offsets": [0]}}')),
        ("adapter_model.safetensors", weights_of(b'{"w": {"data_offsets": [0, "x"]}}')),
        ("adapter_model.safetensors", weights_of(b'{"w": {"data_offsets": [0, Infinity]}}')),
        ("adapter_model.safetensors", weights_of(b"[" * 50_000)),
        ("adapter_config.json", b"[]"),
        ("adapter_config.json", b"[" * 50_000),
        ("adapter_config.json", b"\xff"),
        ("manifest.json", b"[" * 50_000),
    ],
)
def test_a_file_of_another_kind_is_passed_over(tmp_path: Path, name: str, content: bytes) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    if name != "manifest.json":
        (newest / "manifest.json").unlink()
    (newest / name).write_bytes(content)
    assert checkpoints.list_steps(tmp_path) == [1]
    with pytest.raises(CheckpointIncompleteError) as caught:
        checkpoints.require_checkpoint(tmp_path, 2)
    assert caught.value.missing == [name]


def test_only_names_under_which_a_step_is_opened_are_listed(tmp_path: Path) -> None:
    save(tmp_path, 2)
    root = checkpoints.checkpoints_dir(tmp_path)
    for name in ("7", "00000002", "٣"):
        (root / name).mkdir()
        write_adapter(root / name)
    (root / "0009").write_text("a file")
    assert checkpoints.list_steps(tmp_path) == [2]
    assert checkpoints.newest_step(tmp_path) == 2
    assert checkpoints.next_step(tmp_path) == 10


def test_a_deleted_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    save(tmp_path, 2)
    assert checkpoints.list_steps(tmp_path) == [1, 2]
    assert checkpoints.delete_checkpoints(tmp_path, keep={2}) == [1]
    assert os.listdir(path.parent) == ["0002"]
    checkpoints.verify_checkpoint(elsewhere, digests=True)


def test_a_file_system_that_refuses_to_delete_is_a_checkpoint_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)

    def refuse(path: Path, target: Path) -> Path:
        raise error

    monkeypatch.setattr(Path, "rename", refuse)
    error: OSError = OSError(30, "Read-only file system")
    with pytest.raises(CheckpointError, match=r"0001 not deleted: .*Read-only file system"):
        checkpoints.delete_checkpoints(tmp_path, keep={2})
    error = FileNotFoundError(2, "No such file or directory")  # deleted by another program meanwhile
    assert checkpoints.delete_checkpoints(tmp_path, keep={2}) == []


def test_state_of_the_optimizer_stays_with_one_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [save(tmp_path, step) for step in (1, 2, 3)]
    for path in paths:
        (path / "trainer_state.pt").write_bytes(b"state")
    (paths[1] / "trainer_state.pt").unlink()
    (paths[1] / "trainer_state.pt").mkdir()  # what cannot be removed is told, and ends nothing
    checkpoints.drop_optional_files(tmp_path, keep=3)
    assert [(path / "trainer_state.pt").exists() for path in paths] == [False, True, True]
    assert "not removed from an older checkpoint" in caplog.text


def test_full_disk_is_a_checkpoint_error(tmp_path: Path) -> None:
    def write_to_full_disk() -> None:
        with checkpoints.stage_checkpoint(tmp_path, 1) as staging:
            write_adapter(staging)
            raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left"):
        write_to_full_disk()
    assert checkpoints.list_steps(tmp_path) == []


def test_a_step_is_never_written_twice(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="exists already"):
        save(tmp_path, 1)


def test_missing_step_names_those_there(tmp_path: Path) -> None:
    save(tmp_path, 4)
    with pytest.raises(CheckpointNotFoundError) as caught:
        checkpoints.require_checkpoint(tmp_path, 5)
    assert caught.value.available_steps == [4]


def test_copy_is_independent_of_its_source_being_deleted(tmp_path: Path) -> None:
    source = save(tmp_path, 1)
    content = (source / "adapter_model.safetensors").read_bytes()
    copy = checkpoints.copy_checkpoint(source, tmp_path, 2)
    assert checkpoints.delete_checkpoints(tmp_path, keep={2}) == [1]
    assert (copy / "adapter_model.safetensors").read_bytes() == content
    assert checkpoints.list_steps(tmp_path) == [2]


def test_staging_of_a_killed_writer_is_removed_and_that_of_a_living_one_kept(tmp_path: Path) -> None:
    script = (
        "import sys, os, signal; from pathlib import Path; from art.checkpoints import stage_checkpoint\n"
        "with stage_checkpoint(Path(sys.argv[1]), 3) as staging:\n"
        "    (staging / 'adapter_config.json').write_text('{}'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    writer = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert writer.returncode == -9
    assert len(list(checkpoints.checkpoints_dir(tmp_path).iterdir())) == 1
    with checkpoints.stage_checkpoint(tmp_path, 4) as ours:
        removed = checkpoints.remove_abandoned_staging(tmp_path)
        assert [path.name.split("-")[1] for path in removed] == ["0003"]
        assert ours.is_dir()
        write_adapter(ours)
    assert checkpoints.list_steps(tmp_path) == [4]
    assert os.listdir(checkpoints.checkpoints_dir(tmp_path)) == ["0004"]
