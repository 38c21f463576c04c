"""Packed batches in files: one memory-mapped file for each tensor, `{key}.pt`, raw values without a header.

A manifest, removed before a batch is written and made after it, says that the files belong together: whatever a killed
writer leaves behind is refused.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack, cast

import torch

from art.errors import DataError
from art.preprocessing.packed_tensors import IMAGE_DTYPES, TOKEN_DTYPES, PackedTensors
from art.utils import atomic_files

MANIFEST_NAME = "manifest.json"


class DiskPackedTensors(TypedDict):
    """Where a packed batch lies, and its shape.

    Attributes:
        dir: The folder.
        num_sequences: Rows B.
        sequence_length: Tokens S in a row.
        pixel_values: Columns of the file, and B + 1 offsets: row b has its rows `offsets[b]` to `offsets[b + 1]`.
            Absent if no row has images.
        image_grid_thw: The same for the grids.
    """

    dir: str
    num_sequences: int
    sequence_length: int
    pixel_values: NotRequired[tuple[int, list[int]]]
    image_grid_thw: NotRequired[tuple[int, list[int]]]


def packed_tensors_to_dir(tensors: PackedTensors, dir: str | Path) -> DiskPackedTensors:
    """Write a packed batch, in place of the one that the folder held.

    Tensors that are mapped from earlier files keep their values.

    Args:
        tensors: The batch.
        dir: The folder; made if absent.

    Returns:
        What `packed_tensors_from_dir` takes as keywords.
    """
    folder = Path(dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    num_sequences, sequence_length = tensors["tokens"].shape
    description = DiskPackedTensors(dir=str(dir), num_sequences=num_sequences, sequence_length=sequence_length)
    for key, dtype in TOKEN_DTYPES.items():
        _write(folder / f"{key}.pt", cast(torch.Tensor, tensors[key]).to(dtype))  # type: ignore[literal-required]
    for key, dtype in IMAGE_DTYPES.items():
        rows: list[torch.Tensor | None] = tensors[key]  # type: ignore[literal-required]
        present = [row.reshape(len(row), -1) for row in rows if row is not None]
        path = folder / f"{key}.pt"
        if not present:
            path.unlink(missing_ok=True)
            continue
        offsets = [0, *itertools.accumulate(0 if row is None else len(row) for row in rows)]
        description[key] = (present[0].shape[1], offsets)  # type: ignore[literal-required]
        _write(path, torch.cat(present).to(dtype))
    atomic_files.write_text(folder / MANIFEST_NAME, json.dumps(_shape(description)))
    return description


def packed_tensors_from_dir(**kwargs: Unpack[DiskPackedTensors]) -> PackedTensors:
    """Map a packed batch from its files; writing to a tensor writes to its file.

    Raises:
        DataError: The folder does not hold this batch, or not all of it.
    """
    folder = Path(kwargs["dir"])
    _check_manifest(folder, kwargs)
    shape = (kwargs["num_sequences"], kwargs["sequence_length"])
    tensors: dict[str, Any] = {key: _map(folder / f"{key}.pt", shape, dtype) for key, dtype in TOKEN_DTYPES.items()}
    for key, dtype in IMAGE_DTYPES.items():
        tensors[key] = [None] * kwargs["num_sequences"]
        if key in kwargs:
            num_columns, offsets = kwargs[key]  # type: ignore[literal-required]
            values = _map(folder / f"{key}.pt", (offsets[-1], num_columns), dtype)
            tensors[key] = [values[start:end] if end > start else None for start, end in itertools.pairwise(offsets)]
    return cast(PackedTensors, tensors)


def _write(path: Path, tensor: torch.Tensor) -> None:
    # Another name first, so that a reader which still has the old file mapped keeps it. No flush to the disk: after a
    # power failure nobody reads a batch.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{atomic_files.TEMPORARY_SUFFIX}")
    try:
        tensor.cpu().contiguous().numpy().tofile(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _map(path: Path, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    num_values = shape[0] * shape[1]
    if not num_values:
        return torch.empty(shape, dtype=dtype)
    size = path.stat().st_size if path.exists() else 0
    if size != num_values * dtype.itemsize:  # torch would lengthen a short file
        raise DataError(f"{path} holds {size} bytes, not those of {shape} values of {dtype}: not this batch")
    return torch.from_file(str(path), shared=True, size=num_values, dtype=dtype).view(shape)


def _check_manifest(folder: Path, description: DiskPackedTensors) -> None:
    try:
        written = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DataError(f"{folder} holds no complete packed batch: its writer did not finish ({err})") from err
    if written != _shape(description):
        raise DataError(f"{folder} holds another packed batch than the one asked for: {written}")


def _shape(description: DiskPackedTensors) -> dict[str, Any]:
    shape = {key: value for key, value in description.items() if key != "dir"}
    return cast(dict[str, Any], json.loads(json.dumps(shape)))  # tuples become lists
