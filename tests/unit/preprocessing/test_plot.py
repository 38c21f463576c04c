"""The picture of a packed batch."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from art.errors import MissingDependencyError
from art.preprocessing.pack import PackedTensors, packed_tensors_from_tokenized_results, plot_packed_tensors
from art.preprocessing.tokenize import tokenize_trajectory_groups
from art.trajectories import Trajectory, TrajectoryGroup
from tests.support.tokenizers import answer, toy_tokenizer


def _batch() -> PackedTensors:
    toy = toy_tokenizer()
    question = {"role": "user", "content": "U"}
    trajectories = [
        Trajectory(messages_and_choices=[question, answer(toy, text)], reward=reward)
        for reward, text in enumerate(["A", "BB"])
    ]
    results = tokenize_trajectory_groups(toy, [TrajectoryGroup(trajectories)], False, True)
    return packed_tensors_from_tokenized_results(list(results), 64, rng=random.Random(0))


def test_plot_is_written_and_not_blank(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image_module = pytest.importorskip("PIL.Image")
    plot_packed_tensors(_batch(), str(tmp_path / "new"))
    [path] = (tmp_path / "new").glob("packed_tensors_plot_*.png")
    with image_module.open(path) as image:
        colors = image.convert("RGB").getcolors(maxcolors=1 << 24)
    assert len(colors) > 50


def test_missing_matplotlib_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"openpipe-art\[plotting\]"):
        plot_packed_tensors(_batch(), tmp_path)
