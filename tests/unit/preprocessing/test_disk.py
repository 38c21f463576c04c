"""Packed batches on disk: what is read is one whole batch, or an error."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from art.errors import DataError
from art.preprocessing.disk import packed_tensors_from_dir, packed_tensors_to_dir
from art.preprocessing.packed_tensors import PackedTensors

SIZES = {
    "tokens": 8,
    "group_ids": 8,
    "parent_ids": 8,
    "input_pos": 8,
    "assistant_mask": 1,
    "logprobs": 4,
    "advantages": 4,
    "weights": 4,
}


def make_batch(rows: int, length: int, *, value: int = 5, with_images: bool = False) -> PackedTensors:
    numbers = torch.arange(rows * length).view(rows, length) + value
    pixels: list[torch.Tensor | None] = [None] * rows
    grids: list[torch.Tensor | None] = [None] * rows
    if with_images:
        pixels[1], grids[1] = torch.full((4, 6), 0.5), torch.tensor([[1, 2, 2]])
        pixels[2], grids[2] = torch.full((12, 6), 0.25), torch.tensor([[1, 2, 2], [1, 2, 4]])
    return PackedTensors(
        tokens=numbers,
        group_ids=numbers + 2**62,
        parent_ids=-numbers,
        input_pos=numbers % length,
        assistant_mask=numbers % 2 == 0,
        logprobs=torch.where(numbers % 3 == 0, torch.nan, numbers / 7),
        advantages=numbers / 3,
        weights=numbers / 9,
        pixel_values=pixels,
        image_grid_thw=grids,
    )


def assert_same(left: Any, right: Any) -> None:
    assert left.keys() == right.keys()
    for key in left:
        pairs = (
            [(left[key], right[key])]
            if isinstance(left[key], torch.Tensor)
            else zip(left[key], right[key], strict=True)
        )
        for a, b in pairs:
            assert (a is None) == (b is None), key
            if a is not None:
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("with_images", [False, True])
def test_batch_comes_back_as_it_was(tmp_path: Path, with_images: bool) -> None:
    batch = make_batch(3, 8, with_images=with_images)
    description = packed_tensors_to_dir(batch, str(tmp_path / "tensors"))
    assert (description["num_sequences"], description["sequence_length"]) == (3, 8)
    assert description["dir"] == str(tmp_path / "tensors")
    assert ("pixel_values" in description) == with_images
    assert_same(packed_tensors_from_dir(**description), batch)


def test_files_hold_raw_values(tmp_path: Path) -> None:
    packed_tensors_to_dir(make_batch(3, 8, with_images=True), tmp_path)
    assert {path.stem: path.stat().st_size for path in tmp_path.glob("*.pt")} == {
        **{key: 24 * size for key, size in SIZES.items()},
        "pixel_values": 16 * 6 * 4,
        "image_grid_thw": 3 * 3 * 8,
    }
    assert (tmp_path / "tokens.pt").read_bytes() == b"".join(n.to_bytes(8, "little") for n in range(5, 29))


def test_image_rows_are_found_by_offsets(tmp_path: Path) -> None:
    description = packed_tensors_to_dir(make_batch(3, 8, with_images=True), tmp_path)
    assert description["pixel_values"] == (6, [0, 0, 4, 16])
    assert description["image_grid_thw"] == (3, [0, 0, 1, 3])


def test_mapped_tensors_are_writable_and_shared(tmp_path: Path) -> None:
    description = packed_tensors_to_dir(make_batch(2, 4), tmp_path)
    packed_tensors_from_dir(**description)["logprobs"][1, 2] = -42.0
    assert packed_tensors_from_dir(**description)["logprobs"][1, 2] == -42.0


def test_smaller_batch_replaces_a_larger_one(tmp_path: Path) -> None:
    large = packed_tensors_to_dir(make_batch(3, 64, with_images=True), tmp_path)
    mapped = packed_tensors_from_dir(**large)
    small = packed_tensors_to_dir(make_batch(1, 4, value=900), tmp_path)
    assert_same(packed_tensors_from_dir(**small), make_batch(1, 4, value=900))
    assert_same(mapped, make_batch(3, 64, with_images=True))
    assert not (tmp_path / "pixel_values.pt").exists()
    assert (tmp_path / "tokens.pt").stat().st_size == 32


def test_empty_batch(tmp_path: Path) -> None:
    description = packed_tensors_to_dir(make_batch(0, 8), tmp_path)
    assert packed_tensors_from_dir(**description)["tokens"].shape == (0, 8)


@pytest.mark.parametrize("num_files_written", range(8))
def test_batch_of_a_killed_writer_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_files_written: int
) -> None:
    old = packed_tensors_to_dir(make_batch(2, 4), tmp_path)
    replaced = []

    def replace_until_killed(source: Any, target: Any) -> None:
        if len(replaced) == num_files_written:
            raise KeyboardInterrupt
        replaced.append(target)
        os.rename(source, target)

    monkeypatch.setattr("art.preprocessing.disk.os.replace", replace_until_killed)
    with pytest.raises(KeyboardInterrupt):
        packed_tensors_to_dir(make_batch(2, 4, value=700), tmp_path)
    assert len(replaced) == num_files_written
    with pytest.raises(DataError, match="writer did not finish"):
        packed_tensors_from_dir(**old)


def test_description_of_another_batch_is_refused(tmp_path: Path) -> None:
    old = packed_tensors_to_dir(make_batch(2, 4), tmp_path)
    packed_tensors_to_dir(make_batch(4, 2), tmp_path)
    with pytest.raises(DataError, match="another packed batch"):
        packed_tensors_from_dir(**old)


def test_short_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    description = packed_tensors_to_dir(make_batch(2, 4), tmp_path)
    os.truncate(tmp_path / "weights.pt", 12)
    with pytest.raises(DataError, match="holds 12 bytes"):
        packed_tensors_from_dir(**description)
    assert (tmp_path / "weights.pt").stat().st_size == 12
