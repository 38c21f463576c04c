"""Models and checkpoints to and from a real S3 server on the loopback interface."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from art.checkpoint_manifest import Origin
from art.checkpoints import checkpoint_dir, checkpoints_dir, delete_checkpoints, list_steps, verify_checkpoint
from art.errors import (
    CheckpointIncompleteError,
    CheckpointUnavailableError,
    ConfigurationError,
    MissingDependencyError,
    S3SyncError,
)
from art.utils import s3, s3_bucket, s3_folders
from art.utils.s3_bucket import Bucket, FileDigests
from art.utils.s3_checkpoint_utils import (
    get_checkpoint_step_not_after_from_s3,
    get_latest_checkpoint_step_from_s3,
    migrate_s3_checkpoints_to_new_structure,
)
from tests.support.s3_server import BUCKET, SECRET, keys_in, plain_client, s3_server
from tests.support.tiny_checkpoints import contents, save_checkpoint

pytestmark = pytest.mark.integration

ROOT = "backup/project/models/m/"
WHERE: dict[str, Any] = {"model_name": "m", "project": "project", "s3_bucket": BUCKET, "prefix": "backup"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def here(server: str, tmp_path: Path) -> Path:
    """A machine with a model of two steps; the bucket is empty."""
    client = plain_client()
    for bucket in client.list_buckets()["Buckets"]:
        keys = keys_in(bucket["Name"])
        if keys:
            client.delete_objects(Bucket=bucket["Name"], Delete={"Objects": [{"Key": key} for key in keys]})
        client.delete_bucket(Bucket=bucket["Name"])
    model_dir = tmp_path / "here" / "project" / "models" / "m"
    for step in (0, 3):
        save_checkpoint(model_dir, step, value=step, origin=Origin("rl", "base"))
    for name, content in {
        "model.json": json.dumps({"name": "m", "inference_api_key": SECRET}),
        "state.json": "{}",
        "history.jsonl": '{"step": 3}\n',
        "logs/vllm.log": "log",
        "trajectories/train/0003.parquet": "rows",
        "tensors/tokens.pt": "large",
        "serving/1-a/adapter_config.json": "{}",
        ".lock": "7",
    }.items():
        path = model_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "here"


def model_dir(art_path: Path) -> Path:
    return art_path / "project" / "models" / "m"


def push(art_path: Path, **options: Any) -> None:
    asyncio.run(s3.push_model_to_s3(**WHERE, art_path=str(art_path), **options))


def pull(art_path: Path, **options: Any) -> Path:
    return Path(asyncio.run(s3.pull_model_from_s3(**WHERE, art_path=str(art_path), **options)))


def put(name: str, content: bytes, **metadata: str) -> None:
    plain_client().put_object(Bucket=BUCKET, Key=ROOT + name, Body=content, Metadata=metadata)


def get(name: str) -> bytes:
    content: bytes = plain_client().get_object(Bucket=BUCKET, Key=ROOT + name)["Body"].read()
    return content


def test_paths_in_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    assert s3.build_s3_path(**WHERE) == f"s3://{BUCKET}/backup/project/models/m"
    assert s3.build_s3_path(**WHERE, step=7) == f"s3://{BUCKET}/backup/project/models/m/checkpoints/0007"
    monkeypatch.setenv("BACKUP_BUCKET", "other")
    assert s3.build_s3_path(model_name="m", project="p") == "s3://other/p/models/m"
    monkeypatch.delenv("BACKUP_BUCKET")
    with pytest.raises(ConfigurationError, match="BACKUP_BUCKET"):
        s3.build_s3_path(model_name="m", project="p")


def test_pushed_and_pulled_model_is_the_same_but_for_secrets_and_what_is_local(here: Path, tmp_path: Path) -> None:
    push(here)
    assert pull(tmp_path / "there") == model_dir(tmp_path / "there")
    sent, received = contents(model_dir(here)), contents(model_dir(tmp_path / "there"))
    for name in ("tensors/tokens.pt", "serving/1-a/adapter_config.json", ".lock", "model.json"):
        del sent[name]
    assert json.loads(received.pop("model.json")) == {"name": "m"}
    assert received == sent
    assert (model_dir(tmp_path / "there") / "model.json").stat().st_mode & 0o777 == 0o600
    assert not any(SECRET.encode() in get(key.removeprefix(ROOT)) for key in keys_in())
    assert not any(part in key for key in keys_in() for part in ("/.lock", "/tensors/", "/serving/"))


def test_files_in_several_parts_arrive_as_they_were(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_bucket, "PART_BYTES", 5 << 20)  # the smallest part that the protocol allows
    state = checkpoint_dir(model_dir(here), 3) / "notes.bin"
    state.write_bytes(bytes(range(256)) * (11 << 12))  # 11 MiB: three parts
    push(here)
    etag = plain_client().head_object(Bucket=BUCKET, Key=f"{ROOT}checkpoints/0003/notes.bin")["ETag"].strip('"')
    assert etag == FileDigests.of(state).etag
    assert etag.endswith("-3")
    pull(tmp_path / "there", step=3)
    received = checkpoint_dir(model_dir(tmp_path / "there"), 3) / "notes.bin"
    assert received.read_bytes() == state.read_bytes()


def test_pushing_again_sends_only_what_changed(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    push(here)
    (model_dir(here) / "history.jsonl").write_text('{"step": 4}\n')
    (checkpoint_dir(model_dir(here), 0) / "trainer_state.pt").unlink()  # as saving a newer step does
    save_checkpoint(model_dir(here), 4, value=4)
    with caplog.at_level(logging.DEBUG, logger="art.utils.s3_bucket"):
        push(here)
    sent = [record.message.split("models/m/")[1].split()[0] for record in caplog.records if "sent:" in record.message]
    assert sorted(sent) == [
        "checkpoints/0004/adapter_config.json",
        "checkpoints/0004/adapter_model.safetensors",
        "checkpoints/0004/manifest.json",
        "checkpoints/0004/tokenizer.json",
        "checkpoints/0004/trainer_state.pt",
        "history.jsonl",
    ]
    assert sent.index("checkpoints/0004/adapter_config.json") == len(sent) - 3  # these come last, in this order,
    assert sent.index("checkpoints/0004/manifest.json") == len(sent) - 2  # so that a half-sent one is never listed


def test_deleting_what_the_other_side_lacks_is_asked_for(here: Path, tmp_path: Path) -> None:
    push(here)
    there = tmp_path / "there"
    pull(there)
    save_checkpoint(model_dir(there), 9)
    (model_dir(there) / "logs" / "old.log").write_text("")
    (model_dir(there) / "tensors").mkdir()
    (model_dir(there) / "tensors" / "kept.pt").write_text("")
    push(there)
    assert {f"{ROOT}checkpoints/0009/manifest.json", f"{ROOT}logs/old.log"} <= {*keys_in()}
    push(here)
    assert f"{ROOT}checkpoints/0009/manifest.json" in keys_in()
    push(here, delete=True)
    assert not any("0009" in key or "old.log" in key for key in keys_in())
    pull(there)
    assert list_steps(model_dir(there)) == [0, 3, 9]
    pull(there, delete=True)
    assert list_steps(model_dir(there)) == [0, 3]
    assert not (model_dir(there) / "logs" / "old.log").exists()
    assert (model_dir(there) / "tensors" / "kept.pt").exists()


def test_excluded_folders_stay_in_the_bucket(here: Path, tmp_path: Path) -> None:
    push(here)
    pull(tmp_path / "there", exclude=["checkpoints", "logs"])
    received = contents(model_dir(tmp_path / "there"))
    assert sorted(received) == ["history.jsonl", "model.json", "state.json", "trajectories/train/0003.parquet"]
    with pytest.raises(ConfigurationError, match="tensors"):
        pull(tmp_path / "there", exclude=["tensors"])


def test_differing_checkpoint_is_replaced_whole(here: Path, tmp_path: Path) -> None:
    push(here)
    there = tmp_path / "there"
    mine = save_checkpoint(model_dir(there), 3, value=8)
    (mine / "extra.txt").write_text("of the old one")
    assert pull(there, step=3) == mine
    assert contents(mine) == contents(checkpoint_dir(model_dir(here), 3))
    assert [path.name for path in checkpoints_dir(model_dir(there)).iterdir()] == ["0003"]


def test_nothing_in_the_bucket_is_no_error_but_a_missing_step_is(here: Path, tmp_path: Path) -> None:
    plain_client().create_bucket(Bucket=BUCKET)
    pull(tmp_path / "there")
    assert not (tmp_path / "there").exists()
    push(here)
    with pytest.raises(CheckpointUnavailableError, match=r"no checkpoint of step 5 .*steps there: \[0, 3\]"):
        pull(tmp_path / "there", step=5)


def test_pulling_never_creates_the_bucket(here: Path, tmp_path: Path) -> None:
    with pytest.raises(S3SyncError, match=f"s3://{BUCKET}/{ROOT}.*there is no such bucket") as caught:
        pull(tmp_path / "there")
    assert (caught.value.bucket, caught.value.code) == (BUCKET, "NoSuchBucket")
    assert plain_client().list_buckets()["Buckets"] == []
    with pytest.raises(S3SyncError, match="NoSuchBucket"):
        asyncio.run(get_latest_checkpoint_step_from_s3(**WHERE))


def corrupt(name: str) -> None:
    """Change one byte of an object and keep what is stored beside it, as a failing disk would."""
    content = bytearray(get(name))
    content[-1] ^= 1
    head = plain_client().head_object(Bucket=BUCKET, Key=ROOT + name)
    put(name, bytes(content), **head["Metadata"])


@pytest.mark.parametrize("name", ["checkpoints/0003/adapter_model.safetensors", "history.jsonl"])
def test_other_content_than_was_sent_is_not_taken(here: Path, tmp_path: Path, name: str) -> None:
    push(here)
    there = tmp_path / "there"
    pull(there)
    before = contents(model_dir(there))
    save_checkpoint(model_dir(tmp_path / "fresh"), 0)
    corrupt(name)
    if name == "history.jsonl":
        (model_dir(there) / name).unlink()
        del before[name]
        target = there
    else:
        target = tmp_path / "fresh"
    with pytest.raises(S3SyncError, match=f"{name} was not fetched whole"):
        pull(target)
    assert 3 not in list_steps(model_dir(tmp_path / "fresh"))
    assert contents(model_dir(there)) == before
    assert list(checkpoints_dir(model_dir(tmp_path / "fresh")).glob(".*")) == []


def test_pushing_again_mends_what_was_changed_in_the_bucket(here: Path, tmp_path: Path) -> None:
    push(here)
    name = "checkpoints/0003/adapter_model.safetensors"

    def written_at(name: str) -> datetime:
        when: datetime = plain_client().head_object(Bucket=BUCKET, Key=ROOT + name)["LastModified"]
        return when

    good = get(name)
    corrupt(name)
    while written_at(name) <= written_at("checkpoints/0003/manifest.json"):
        put(name, get(name), **plain_client().head_object(Bucket=BUCKET, Key=ROOT + name)["Metadata"])
    assert get(name) != good
    push(here)
    assert get(name) == good
    pull(tmp_path / "there")
    verify_checkpoint(checkpoint_dir(model_dir(tmp_path / "there"), 3), digests=True)


def test_content_that_arrives_otherwise_is_noticed_while_pushing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(BUCKET)
    bucket.ensure_exists()
    path = here / "file"
    path.write_bytes(b"right")
    real = bucket._client.upload_file

    def send_wrong(filename: str, *arguments: Any, **options: Any) -> None:
        (here / "wrong").write_bytes(b"wrong")
        real(str(here / "wrong"), *arguments, **options)

    monkeypatch.setattr(bucket._client, "upload_file", send_wrong)
    with pytest.raises(S3SyncError, match="does not hold what was sent"):
        bucket.upload(path, "key", FileDigests.of(path))


def test_a_checkpoint_that_rotted_here_is_not_pushed(here: Path) -> None:
    weights = checkpoint_dir(model_dir(here), 3) / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    with pytest.raises(CheckpointIncompleteError, match=r"adapter_model\.safetensors differ"):
        push(here)
    assert not any("0003" in key for key in keys_in())


def test_checkpoint_that_is_deleted_while_it_is_pushed_is_left_out(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FileDigests.of

    def delete_then_read(path: Path) -> FileDigests:
        delete_checkpoints(model_dir(here), keep={3})
        return real(path)

    monkeypatch.setattr(FileDigests, "of", delete_then_read)
    push(here)
    assert newest() == 3
    assert not any("checkpoints/0000" in key for key in keys_in())


def newest(**limits: int) -> int | None:
    if limits:
        return asyncio.run(get_checkpoint_step_not_after_from_s3(**WHERE, **limits))
    return asyncio.run(get_latest_checkpoint_step_from_s3(**WHERE))


def test_only_complete_checkpoints_count_as_there(here: Path, tmp_path: Path) -> None:
    save_checkpoint(model_dir(here), 12)
    push(here)
    assert (newest(), newest(not_after_step=11), newest(not_after_step=2)) == (12, 3, 0)
    plain_client().delete_object(Bucket=BUCKET, Key=f"{ROOT}checkpoints/0012/tokenizer.json")
    assert newest() == 3
    plain_client().delete_object(Bucket=BUCKET, Key=f"{ROOT}checkpoints/0003/manifest.json")
    assert newest() == 3  # as releases without manifests push them
    plain_client().delete_object(Bucket=BUCKET, Key=f"{ROOT}checkpoints/0003/adapter_config.json")
    assert newest() == 0
    put("checkpoints/notes/adapter_config.json", b"{}")
    put("checkpoints/0000/manifest.json", b"{")
    assert newest() is None
    pull(tmp_path / "there")
    assert list_steps(model_dir(tmp_path / "there")) == []
    with pytest.raises(CheckpointIncompleteError, match=r"tokenizer\.json absent or broken"):
        pull(tmp_path / "there", step=12)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_checkpoint_is_pulled_once_also_that_of_a_release_without_manifests(
    here: Path, tmp_path: Path, has_manifest: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not has_manifest:
        (checkpoint_dir(model_dir(here), 3) / "manifest.json").unlink()
    push(here)
    path = pull(tmp_path / "there", step=3)
    verify_checkpoint(path, digests=True)
    made = path.stat().st_ino
    with caplog.at_level(logging.INFO):
        assert pull(tmp_path / "there", step=3).stat().st_ino == made
    assert "checkpoint is here already" in caplog.text


def test_names_that_lead_out_of_the_folder_are_refused(here: Path, tmp_path: Path) -> None:
    push(here)
    put("logs/../../../outside.txt", b"x")
    with pytest.raises(S3SyncError, match="its name would lead elsewhere"):
        pull(tmp_path / "there")
    assert not list(tmp_path.rglob("outside.txt"))


def test_unreachable_server_and_missing_credentials_are_told_without_secrets(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with caplog.at_level(logging.INFO):
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL_S3", f"http://user:{SECRET}@127.0.0.1:9")
            with pytest.raises(S3SyncError, match="AWS_ENDPOINT_URL_S3") as unreachable:
                pull(tmp_path / "there")
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(S3SyncError, match="AWS_PROFILE") as without:
            pull(tmp_path / "there")
    assert BUCKET in str(without.value)
    assert SECRET not in str(unreachable.value) + caplog.text


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(MissingDependencyError, match=r"openpipe-art\[s3\]"):
        Bucket("bucket")


# Where a transfer is broken off, the library leaves closing the file to the garbage collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning")
def test_cancelled_push_ends_and_leaves_no_listed_half(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., None] = Bucket.upload

    async def cancel_when_first_file_is_sent() -> None:
        reached, loop = asyncio.Event(), asyncio.get_running_loop()

        def upload(self: Bucket, path: Path, *arguments: Any) -> None:
            real(self, path, *arguments)
            loop.call_soon_threadsafe(reached.set)

        monkeypatch.setattr(Bucket, "upload", upload)
        pushing = asyncio.ensure_future(s3.push_model_to_s3(**WHERE, art_path=str(here)))
        await reached.wait()
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing

    asyncio.run(cancel_when_first_file_is_sent())
    monkeypatch.undo()
    push(here)
    assert newest() == 3


def test_single_files_and_folders_are_synced(here: Path, tmp_path: Path) -> None:
    asyncio.run(s3.ensure_bucket_exists(BUCKET))
    logs = model_dir(here) / "logs"
    asyncio.run(s3.s3_sync(str(logs), f"s3://{BUCKET}/some/logs/"))
    asyncio.run(s3.s3_sync(str(logs / "vllm.log"), f"s3://{BUCKET}/one.log"))
    assert keys_in() == ["one.log", "some/logs/vllm.log"]
    asyncio.run(s3.s3_sync(f"s3://{BUCKET}/one.log", str(tmp_path / "got" / "one.log")))
    asyncio.run(s3.s3_sync(f"s3://{BUCKET}/some", str(tmp_path / "got")))
    assert contents(tmp_path / "got") == {"one.log": b"log", "logs/vllm.log": b"log"}
    with pytest.raises(ConfigurationError, match="one of"):
        asyncio.run(s3.s3_sync("a", "b"))


def test_archive_of_a_step_is_served_to_whoever_has_the_address(here: Path, tmp_path: Path) -> None:
    push(here)
    url = asyncio.run(s3.archive_and_presign_step_url(**WHERE, step=3, art_path=str(tmp_path / "there")))
    with urllib.request.urlopen(url) as answer, zipfile.ZipFile(BytesIO(answer.read())) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        assert names == {*contents(checkpoint_dir(model_dir(here), 3))}
    assert f"{ROOT}zipped-steps/0003.zip" in keys_in()
    pull(tmp_path / "other")
    assert not (model_dir(tmp_path / "other") / "zipped-steps").exists()


def test_old_layout_is_moved_on_the_server(here: Path) -> None:
    push(here)
    for key in keys_in():
        if "/checkpoints/0003/" in key:
            put(f"3/{key.rpartition('/')[2]}", get(key.removeprefix(ROOT)))
            plain_client().delete_object(Bucket=BUCKET, Key=key)
    assert newest() == 0
    asyncio.run(migrate_s3_checkpoints_to_new_structure(**WHERE, dry_run=True))
    assert newest() == 0
    asyncio.run(migrate_s3_checkpoints_to_new_structure(**WHERE))
    assert newest() == 3
    assert not any(key.startswith(f"{ROOT}3/") for key in keys_in())


def test_after_a_failure_no_other_transfer_begins() -> None:
    begun: list[int] = []

    def fail(progress: Any) -> None:
        begun.append(1)
        raise S3SyncError("no", bucket="b")

    transfers = s3_folders.Transfers()
    many = [s3_folders.Transfer(str(number), 1, fail) for number in range(500)]
    with pytest.raises(S3SyncError, match="no"):
        transfers.run("test", many)
    assert len(begun) < 500
