"""`LocalBackend` takes checkpoints over from other models and from a bucket. No engine is started."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import art
from art.checkpoint_manifest import Origin, ParentCheckpoint, read_manifest
from art.checkpoints import checkpoint_dir, copy_checkpoint, list_steps, next_step, verify_checkpoint
from art.errors import CheckpointError, CheckpointUnavailableError, ConfigurationError, S3SyncError
from art.local import LocalBackend
from art.local.checkpoints import get_last_checkpoint_dir, migrate_checkpoints_to_new_structure
from art.utils.directory_lock import DirectoryLock
from tests.support.s3_server import plain_client, s3_server
from tests.support.tiny_checkpoints import contents, save_checkpoint

BUCKET = "fork-bucket"
pytestmark = pytest.mark.integration

RL = Origin("rl", "base")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(server: str) -> Iterator[str]:
    client = plain_client()
    client.create_bucket(Bucket=BUCKET)
    yield BUCKET
    for entry in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    client.delete_bucket(Bucket=BUCKET)


def make_model(name: str, project: str = "project", base_model: str = "base") -> Any:
    return art.TrainableModel(name=name, project=project, base_model=base_model)


def folder_of(path: Path, name: str, project: str = "project") -> Path:
    return path / project / "models" / name


def fork(path: Path, model: Any, *arguments: Any, **options: Any) -> None:
    asyncio.run(LocalBackend(path=str(path))._experimental_fork_checkpoint(model, *arguments, **options))


def pull(path: Path, model: Any, **options: Any) -> Path:
    return Path(asyncio.run(LocalBackend(path=str(path))._experimental_pull_model_checkpoint(model, **options)))


def push(path: Path, model: Any, **options: Any) -> None:
    asyncio.run(LocalBackend(path=str(path))._experimental_push_to_s3(model, **options))


def test_fork_takes_one_checkpoint_under_its_number(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "old")
    for step in (0, 2, 7, 30):
        save_checkpoint(source, step, value=step, origin=RL)
    (source / "checkpoints" / "notes").mkdir()
    fork(tmp_path, make_model("new"), "old", not_after_step=29)
    target = folder_of(tmp_path, "new")
    assert (list_steps(target), next_step(target)) == ([7], 8)
    ours, theirs = contents(checkpoint_dir(target, 7)), contents(checkpoint_dir(source, 7))
    assert json.loads(ours.pop("manifest.json"))["files"] == json.loads(theirs.pop("manifest.json"))["files"]
    assert ours == theirs
    manifest = read_manifest(checkpoint_dir(target, 7))
    parent = ParentCheckpoint(7, "project", "old")
    assert manifest is not None
    assert manifest.origin == Origin("fork", "base", parent, forked_from=parent)
    copied = read_manifest(copy_checkpoint(checkpoint_dir(target, 7), target, 8))
    assert copied is not None
    assert copied.origin == Origin("copy", "base", ParentCheckpoint(7), forked_from=parent)
    fork(tmp_path, make_model("newest", project="other"), "old", from_project="project")
    assert list_steps(folder_of(tmp_path, "newest", "other")) == [30]


def test_fork_shares_no_files_with_its_source(tmp_path: Path) -> None:
    weights = save_checkpoint(folder_of(tmp_path, "old"), 1) / "adapter_model.safetensors"
    fork(tmp_path, make_model("new"), "old")
    before = contents(checkpoint_dir(folder_of(tmp_path, "new"), 1))
    weights.write_bytes(b"overwritten in place")
    assert contents(checkpoint_dir(folder_of(tmp_path, "new"), 1)) == before


def test_script_that_forks_at_every_start_goes_on_where_it_was(tmp_path: Path) -> None:
    save_checkpoint(folder_of(tmp_path, "old"), 4)
    fork(tmp_path, make_model("new"), "old")
    target = folder_of(tmp_path, "new")
    copy_checkpoint(checkpoint_dir(target, 4), target, 5)
    shutil.rmtree(checkpoint_dir(target, 4))  # as retention may do
    fork(tmp_path, make_model("new"), "old")
    assert list_steps(target) == [5]


def test_fork_again_before_any_training_takes_what_is_there_now(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "old")
    save_checkpoint(source, 4, value=1)
    fork(tmp_path, make_model("new"), "old")
    shutil.rmtree(checkpoint_dir(source, 4))
    weights = save_checkpoint(source, 4, value=2) / "adapter_model.safetensors"
    fork(tmp_path, make_model("new"), "old")
    copied = checkpoint_dir(folder_of(tmp_path, "new"), 4) / "adapter_model.safetensors"
    assert copied.read_bytes() == weights.read_bytes()


def test_fork_never_hides_behind_newer_checkpoints(tmp_path: Path) -> None:
    save_checkpoint(folder_of(tmp_path, "old"), 4)
    save_checkpoint(folder_of(tmp_path, "new"), 6)
    with pytest.raises(CheckpointError, match="it has a checkpoint of step 6"):
        fork(tmp_path, make_model("new"), "old")
    assert list_steps(folder_of(tmp_path, "new")) == [6]


def test_differing_checkpoint_of_that_step_is_replaced(tmp_path: Path) -> None:
    save_checkpoint(folder_of(tmp_path, "old"), 4, value=1)
    path = save_checkpoint(folder_of(tmp_path, "new"), 4, value=2)
    save_checkpoint(folder_of(tmp_path, "new"), 0)
    fork(tmp_path, make_model("new"), "old")
    expected = checkpoint_dir(folder_of(tmp_path, "old"), 4) / "adapter_model.safetensors"
    assert (path / "adapter_model.safetensors").read_bytes() == expected.read_bytes()
    assert list_steps(folder_of(tmp_path, "new")) == [0, 4]


@pytest.mark.parametrize("kind", [FileNotFoundError, ValueError, CheckpointUnavailableError])
def test_nothing_to_fork_makes_nothing(tmp_path: Path, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="no complete checkpoint"):
        fork(tmp_path, make_model("new"), "old")
    save_checkpoint(folder_of(tmp_path, "old"), 4)
    with pytest.raises(kind, match="of step 3 or before"):
        fork(tmp_path, make_model("new"), "old", not_after_step=3)
    assert not folder_of(tmp_path, "new").exists()


def test_fork_into_a_model_in_training_is_refused(tmp_path: Path) -> None:
    save_checkpoint(folder_of(tmp_path, "old"), 4)
    target = folder_of(tmp_path, "new")
    target.mkdir(parents=True)
    lock = DirectoryLock(target)
    lock.acquire()
    try:
        with pytest.raises(ConfigurationError, match="is in use by process"):
            fork(tmp_path, make_model("new"), "old")
    finally:
        lock.release()
    backend = LocalBackend(path=str(tmp_path))
    backend._is_running = lambda model: True  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="before you register it"):
        asyncio.run(backend._experimental_fork_checkpoint(make_model("new"), "old"))
    assert list_steps(target) == []


def test_fork_from_a_rotten_checkpoint_is_refused(tmp_path: Path) -> None:
    weights = save_checkpoint(folder_of(tmp_path, "old"), 4) / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors"):
        fork(tmp_path, make_model("new"), "old")
    assert list_steps(folder_of(tmp_path, "new")) == []


def test_fork_into_what_cannot_be_a_folder_says_so(tmp_path: Path) -> None:
    save_checkpoint(folder_of(tmp_path, "old"), 4)
    folder_of(tmp_path, "new").write_text("a file")
    with pytest.raises(CheckpointError, match=r"step 4 not forked: .*new cannot be made"):
        fork(tmp_path, make_model("new"), "old")


def test_another_base_model_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_checkpoint(folder_of(tmp_path, "old"), 4, origin=RL)
    fork(tmp_path, make_model("new", base_model="other"), "old")
    assert "was trained on base, and is used on other" in caplog.text


def test_fork_from_a_bucket_honours_the_prefix(tmp_path: Path, bucket: str) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    for step in (2, 5, 9):
        save_checkpoint(folder_of(far, "old"), step, value=step, origin=RL)
    push(far, make_model("old"), s3_bucket=bucket, prefix="some/where")
    with pytest.raises(CheckpointUnavailableError, match=f"nor in the bucket {bucket}"):
        fork(here, make_model("new"), "old", from_s3_bucket=bucket)
    fork(here, make_model("new"), "old", from_s3_bucket=bucket, prefix="some/where", not_after_step=8)
    target = checkpoint_dir(folder_of(here, "new"), 5)
    verify_checkpoint(target, digests=True)
    manifest = read_manifest(target)
    assert manifest is not None
    assert manifest.origin.made_by == "fork"
    where = f"s3://{bucket}/some/where/project/models/old/checkpoints/0005/"
    assert manifest.origin.parent == ParentCheckpoint(5, "project", "old", where)
    assert not folder_of(here, "old").exists()
    save_checkpoint(folder_of(here, "old"), 7, value=70)  # this machine's is newer than what is wanted from there
    fork(here, make_model("latest"), "old", from_s3_bucket=bucket, prefix="some/where", not_after_step=8)
    assert list_steps(folder_of(here, "latest")) == [7]
    with pytest.raises(S3SyncError, match="no-such-bucket"):
        fork(here, make_model("third"), "old", from_s3_bucket="no-such-bucket")


def test_newest_of_machine_and_bucket_is_pulled(tmp_path: Path, bucket: str) -> None:
    far, here, model = tmp_path / "far", tmp_path / "here", make_model("m")
    for step in (2, 5):
        save_checkpoint(folder_of(far, "m"), step, value=step)
    push(far, model, s3_bucket=bucket)
    save_checkpoint(folder_of(here, "m"), 0)
    assert pull(here, model, s3_bucket=bucket) == checkpoint_dir(folder_of(here, "m"), 5)
    assert list_steps(folder_of(here, "m")) == [0, 5]
    save_checkpoint(folder_of(here, "m"), 6)
    plain_client().delete_object(Bucket=bucket, Key="project/models/m/checkpoints/0002/adapter_config.json")
    assert pull(here, model, s3_bucket=bucket, step="latest") == checkpoint_dir(folder_of(here, "m"), 6)
    with pytest.raises(CheckpointError, match=r"adapter_config\.json absent"):
        pull(here, model, s3_bucket=bucket, step=2)
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 3"):
        pull(here, model, s3_bucket=bucket, step=3)


def test_pull_without_a_bucket_finds_what_is_here(tmp_path: Path) -> None:
    model = make_model("m")
    with pytest.raises(ValueError, match="no bucket is named"):
        pull(tmp_path, model)
    save_checkpoint(folder_of(tmp_path, "m"), 0)
    with pytest.raises(ValueError, match="no bucket is named"):
        pull(tmp_path, model)  # an untrained step 0 is none
    assert pull(tmp_path, model, step=0) == checkpoint_dir(folder_of(tmp_path, "m"), 0)
    with pytest.raises(FileNotFoundError, match="no bucket is named"):
        pull(tmp_path, model, step=3)
    with pytest.raises(ConfigurationError, match="step is '3'"):
        pull(tmp_path, model, step="3")  # not the newest in its place


def test_checkpoint_is_copied_to_a_folder_of_the_users(tmp_path: Path) -> None:
    model = make_model("m")
    old, new = (save_checkpoint(folder_of(tmp_path, "m"), step, value=step) for step in (1, 2))
    (new / "trainer_state.pt").unlink()
    wanted = tmp_path / "deep" / "export"
    ended = subprocess.Popen(["true"])
    ended.wait()
    (wanted.parent / f".export.art-{ended.pid}-1234abcd").mkdir(parents=True)  # of a copy that was killed
    assert pull(tmp_path, model, step=1, local_path=str(wanted)) == wanted
    assert contents(wanted) == contents(old)
    assert pull(tmp_path, model, local_path=str(wanted)) == wanted
    assert contents(wanted) == contents(new)
    assert [path.name for path in wanted.parent.iterdir()] == ["export"]
    (wanted / "adapter_config.json").write_text("changed")
    verify_checkpoint(new, digests=True)


def test_whole_model_is_pulled_with_a_warning_that_names_what_is_better(tmp_path: Path, bucket: str) -> None:
    far, here, model = tmp_path / "far", tmp_path / "here", make_model("m")
    model._s3_bucket, model._s3_prefix = bucket, "kept"  # a model may bring its own place

    def pull_all(**options: Any) -> None:
        with pytest.warns(DeprecationWarning, match="_experimental_pull_model_checkpoint"):
            asyncio.run(LocalBackend(path=str(here))._experimental_pull_from_s3(model, **options))

    pull_all(only_step="latest")
    pull_all(latest_only=True)
    assert not folder_of(here, "m").exists()
    for step in (2, 5):
        save_checkpoint(folder_of(far, "m"), step, value=step)
    (folder_of(far, "m") / "history.jsonl").write_text("{}\n")
    push(far, model)
    pull_all(step=2)
    assert list_steps(folder_of(here, "m")) == [2]
    pull_all(only_step="latest")
    assert list_steps(folder_of(here, "m")) == [2, 5]
    assert not (folder_of(here, "m") / "history.jsonl").exists()
    pull_all(exclude=["checkpoints"])
    assert (folder_of(here, "m") / "history.jsonl").exists()
    lock = DirectoryLock(folder_of(here, "m"))
    lock.acquire()
    with pytest.raises(ConfigurationError, match="is in use by process"):
        pull_all()
    lock.release()
    with pytest.raises(FileNotFoundError, match="nothing to push"):
        push(here, make_model("absent"), s3_bucket=bucket)


def test_running_model_takes_no_newer_step_but_an_older_one(tmp_path: Path, bucket: str) -> None:
    far, here, model = tmp_path / "far", tmp_path / "here", make_model("m")
    for step in (2, 5):
        save_checkpoint(folder_of(far, "m"), step)
    push(far, model, s3_bucket=bucket)
    save_checkpoint(folder_of(here, "m"), 3)
    backend = LocalBackend(path=str(here))
    backend._is_running = lambda model: True  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="step 5 is newer"):
        asyncio.run(backend._experimental_pull_model_checkpoint(model, s3_bucket=bucket))
    asyncio.run(backend._experimental_pull_model_checkpoint(model, s3_bucket=bucket, step=2))
    assert list_steps(folder_of(here, "m")) == [2, 3]


def test_old_layout_is_moved(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "other", 7)
    checkpoint_dir(tmp_path / "other", 7).rename(tmp_path / "7")
    assert get_last_checkpoint_dir(str(tmp_path)) is None
    migrate_checkpoints_to_new_structure(str(tmp_path))
    assert get_last_checkpoint_dir(str(tmp_path)) == str(checkpoint_dir(tmp_path, 7))
