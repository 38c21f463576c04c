"""What a checkpoint folder says of itself: where it comes from, and the size and digest of every file. No torch.

A manifest is written last, before the folder gets its final name. Checkpoints of other programs have none.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from art._version import __version__

ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
MANIFEST_FILE = "manifest.json"
TRAINER_STATE_FILE = "trainer_state.pt"
# Large, and only needed beside the newest step: it may be removed from a checkpoint that is otherwise whole.
OPTIONAL_FILES = frozenset({TRAINER_STATE_FILE})
FORMAT = 1
_READ_BYTES = 1 << 20
DIGESTS_AT_ONCE = 4
_MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit

MadeBy = Literal["initial", "rl", "sft", "copy", "fork", "other"]


@dataclass(frozen=True)
class ParentCheckpoint:
    """The checkpoint that another one was made from.

    Attributes:
        step: Its step.
        project: Its model's project; None: the same as the child's.
        model: Its model's name; None: the same as the child's.
        location: Where it was taken from, if not from this machine, such as `s3://bucket/…`.
    """

    step: int
    project: str | None = None
    model: str | None = None
    location: str | None = None


@dataclass(frozen=True)
class Origin:
    """How a checkpoint came to be.

    Attributes:
        made_by: "initial": an untrained adapter; "rl", "sft": a step of training; "copy": a step without training;
            "fork": taken over from another model; "other": not known.
        base_model: Hub id or path of the base model, as the script wrote it.
        parent: What it was made from.
        forked_from: The checkpoint of another model with which this model's steps began, if they did.
    """

    made_by: MadeBy = "other"
    base_model: str | None = None
    parent: ParentCheckpoint | None = None
    forked_from: ParentCheckpoint | None = None


@dataclass(frozen=True)
class FileRecord:
    """Size and digest of one file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything in `manifest.json`.

    Attributes:
        step: The step that the checkpoint was written as.
        origin: How it came to be.
        files: By path below the folder, with "/" between parts; the manifest itself is not among them.
        created_at: When, in ISO form, UTC.
        version: Version of this package that wrote it.
    """

    step: int
    origin: Origin
    files: Mapping[str, FileRecord]
    created_at: str
    version: str = __version__

    def write(self, folder: Path) -> None:
        """Write `manifest.json`, never through a link that another folder shares."""
        content = {"format": FORMAT, "step": self.step, "version": self.version, "created_at": self.created_at}
        content |= asdict(self.origin)
        content["files"] = {name: asdict(record) for name, record in sorted(self.files.items())}
        temporary = folder / f".{MANIFEST_FILE}.tmp"
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, folder / MANIFEST_FILE)


def record_folder(folder: Path, step: int, origin: Origin) -> Manifest:
    """Make the manifest of a folder, reading every file once."""
    return Manifest(step, origin, record_files(folder), datetime.now(UTC).isoformat(timespec="seconds"))


def record_files(folder: Path) -> dict[str, FileRecord]:
    """Take size and digest of every file below a folder but its manifest."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    paths.pop(MANIFEST_FILE, None)
    with ThreadPoolExecutor(DIGESTS_AT_ONCE) as pool:  # digests are taken outside the interpreter's lock
        digests = list(pool.map(sha256_of, paths.values()))
    return {
        name: FileRecord(path.stat().st_size, digest)
        for (name, path), digest in zip(paths.items(), digests, strict=True)
    }


def read_manifest(folder: Path) -> Manifest | None:
    """Read a folder's manifest; None where it has none.

    Raises:
        ValueError: It cannot be read, or it is of a form that this version does not know.
    """
    try:
        content = (folder / MANIFEST_FILE).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as err:
        raise ValueError(f"{MANIFEST_FILE} cannot be read: {err}") from err
    return parse_manifest(content)


def parse_manifest(content: bytes) -> Manifest:
    """Read the text of a manifest.

    Raises:
        ValueError: It is none, or of a form that this version does not know.
    """
    try:
        fields = json.loads(content)
        if fields["format"] != FORMAT:
            raise ValueError(f"format {fields['format']} is not known to this version, which writes {FORMAT}")
        origin = Origin(
            made_by=fields["made_by"] if fields["made_by"] in get_args(MadeBy) else "other",
            base_model=fields["base_model"],
            parent=_parse_parent(fields["parent"]),
            forked_from=_parse_parent(fields["forked_from"]),
        )
        files = {_checked_name(name): FileRecord(**record) for name, record in fields["files"].items()}
        return Manifest(int(fields["step"]), origin, files, fields["created_at"], fields["version"])
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as err:
        raise ValueError(f"{MANIFEST_FILE} is broken: {type(err).__name__}: {err}") from err


def differing_files(folder: Path, manifest: Manifest, *, digests: bool) -> list[str]:
    """Name the files that are not what the manifest says; by their sizes, or by their digests, which reads them."""
    return [name for name, record in manifest.files.items() if not _is_as_recorded(folder / name, record, digests)]


def missing_adapter_files(path: Path) -> list[str]:
    """Name the files without which there is no adapter: those that are absent or cannot be whole."""
    missing = []
    try:
        is_config = isinstance(json.loads((path / ADAPTER_CONFIG_FILE).read_text(encoding="utf-8")), dict)
    except (OSError, ValueError, RecursionError):
        is_config = False
    if not is_config:
        missing.append(ADAPTER_CONFIG_FILE)
    if not _is_whole_safetensors(path / ADAPTER_WEIGHTS_FILE):
        missing.append(ADAPTER_WEIGHTS_FILE)
    return missing


def missing_files(path: Path, *, digests: bool = False) -> list[str]:
    """Name the files of a checkpoint that are absent, cannot be whole, or are not what its manifest says.

    Args:
        path: The folder.
        digests: Read every file, and look at what may be removed from a checkpoint, too.
    """
    missing = missing_adapter_files(path)
    try:
        manifest = read_manifest(path)
    except ValueError:
        return [*missing, MANIFEST_FILE]
    differing = set() if manifest is None else set(differing_files(path, manifest, digests=digests))
    if not digests:
        differing -= OPTIONAL_FILES  # the adapter can be used all the same
    return [*missing, *sorted(differing - {*missing})]


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256 digest in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _parse_parent(fields: Mapping[str, Any] | None) -> ParentCheckpoint | None:
    return None if fields is None else ParentCheckpoint(**fields)


def _is_as_recorded(path: Path, record: FileRecord, digests: bool) -> bool:
    try:
        size_bytes = path.stat().st_size
        return size_bytes == record.size_bytes and (not digests or sha256_of(path) == record.sha256)
    except FileNotFoundError:
        return path.name in OPTIONAL_FILES
    except OSError:
        return False


def _checked_name(name: Any) -> str:
    """Refuse a name that would lead out of the folder: a manifest may come from somebody else's bucket."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise ValueError(f"file name {name!r}")
    return str(name)


def _is_whole_safetensors(path: Path) -> bool:
    """Compare a safetensors file's size with what its header promises, without reading the weights."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            if header_bytes > min(size_bytes, _MAX_HEADER_BYTES):
                return False
            header = json.loads(file.read(header_bytes))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, struct.error, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return False
    return bool(ends) and size_bytes == 8 + header_bytes + max(ends)
