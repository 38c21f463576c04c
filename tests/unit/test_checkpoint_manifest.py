"""A checkpoint's manifest says what it is, and whether every byte is still that of the day it was saved."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from art import __version__, checkpoints
from art.checkpoint_manifest import MANIFEST_FILE, FileRecord, Origin, ParentCheckpoint, parse_manifest, read_manifest
from art.errors import CheckpointIncompleteError
from tests.support.tiny_checkpoints import save_checkpoint, write_adapter

WEIGHTS = "adapter_model.safetensors"


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def test_manifest_says_what_was_saved_and_where_it_comes_from(tmp_path: Path) -> None:
    origin = Origin("rl", "some/base", ParentCheckpoint(6))
    path = save_checkpoint(tmp_path, 7, origin=origin)
    fields = json.loads((path / MANIFEST_FILE).read_text())
    assert (fields["format"], fields["step"], fields["version"]) == (1, 7, __version__)
    assert (fields["made_by"], fields["base_model"], fields["parent"]["step"]) == ("rl", "some/base", 6)
    assert sorted(fields["files"]) == ["adapter_config.json", WEIGHTS, "tokenizer.json", "trainer_state.pt"]
    # The content of tokenizer.json is {}, of which the digest is well known.
    assert fields["files"]["tokenizer.json"] == {
        "size_bytes": 2,
        "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    }
    manifest = read_manifest(path)
    assert manifest is not None
    assert manifest.origin == origin
    assert manifest.files[WEIGHTS].sha256 == hashlib.sha256((path / WEIGHTS).read_bytes()).hexdigest()


def test_changed_byte_is_found_by_digest_and_lost_file_by_size(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1)
    checkpoints.verify_checkpoint(path, digests=True)
    flip_last_byte(path / WEIGHTS)
    checkpoints.verify_checkpoint(path)
    with pytest.raises(CheckpointIncompleteError) as caught:
        checkpoints.verify_checkpoint(path, digests=True)
    assert caught.value.missing == [WEIGHTS]
    (path / "tokenizer.json").write_text("{ }")
    assert checkpoints.list_steps(tmp_path) == []
    with pytest.raises(CheckpointIncompleteError, match=r"tokenizer\.json"):
        checkpoints.require_checkpoint(tmp_path, 1)


def test_state_of_the_optimizer_may_be_removed_or_broken_but_not_unnoticed(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1)
    (path / "trainer_state.pt").write_bytes(b"cut")
    assert checkpoints.list_steps(tmp_path) == [1]
    with pytest.raises(CheckpointIncompleteError, match=r"trainer_state\.pt"):
        checkpoints.verify_checkpoint(path, digests=True)
    (path / "trainer_state.pt").unlink()
    checkpoints.verify_checkpoint(path, digests=True)


def test_checkpoint_without_manifest_is_as_good_as_can_be_seen(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1)
    (path / MANIFEST_FILE).unlink()
    (path / "tokenizer.json").unlink()
    checkpoints.verify_checkpoint(path, digests=True)
    assert checkpoints.list_steps(tmp_path) == [1]
    assert read_manifest(path) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', "null"])
def test_broken_manifest_makes_the_checkpoint_unusable(tmp_path: Path, content: str) -> None:
    path = save_checkpoint(tmp_path, 1)
    (path / MANIFEST_FILE).write_text(content)
    with pytest.raises(CheckpointIncompleteError, match=r"manifest\.json"):
        checkpoints.verify_checkpoint(path)
    with pytest.raises(ValueError, match="broken"):
        read_manifest(path)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "", "a\\b"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    fields = json.loads((save_checkpoint(tmp_path, 1) / MANIFEST_FILE).read_text())
    fields["files"][name] = {"size_bytes": 1, "sha256": "0"}
    with pytest.raises(ValueError, match="file name"):
        parse_manifest(json.dumps(fields).encode())


def test_copy_says_what_it_is_a_copy_of_and_leaves_its_source_alone(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path, 3, origin=Origin("sft", "base", ParentCheckpoint(2)))
    before = (source / MANIFEST_FILE).read_bytes()
    copy = checkpoints.copy_checkpoint(source, tmp_path, 4)
    assert os.path.samefile(source / WEIGHTS, copy / WEIGHTS)
    assert (source / MANIFEST_FILE).read_bytes() == before
    manifest = read_manifest(copy)
    assert manifest is not None
    assert (manifest.step, manifest.origin) == (4, Origin("copy", "base", ParentCheckpoint(3)))


def test_rotten_checkpoint_is_not_copied(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path, 3)
    flip_last_byte(source / WEIGHTS)
    with pytest.raises(CheckpointIncompleteError) as caught:
        checkpoints.copy_checkpoint(source, tmp_path, 4)
    assert caught.value.missing == [WEIGHTS]
    assert checkpoints.list_steps(tmp_path) == [3]


def test_replaced_checkpoint_is_the_new_one_alone(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, value=1)
    (path / "of the old one").touch()
    with checkpoints.stage_checkpoint(tmp_path, 1, replace=True) as staging:
        write_adapter(staging, 2)
    assert not (path / "of the old one").exists()
    assert (path / WEIGHTS).read_bytes().endswith(b"\0\0\0@")  # 2.0 as a float32
    assert os.listdir(path.parent) == ["0001"]


def test_manifest_that_is_written_is_the_one_that_is_read(tmp_path: Path) -> None:
    manifest = read_manifest(save_checkpoint(tmp_path, 1, origin=Origin("fork", None, ParentCheckpoint(1, "p", "m"))))
    assert manifest is not None
    manifest.write(tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert isinstance(manifest.files[WEIGHTS], FileRecord)
