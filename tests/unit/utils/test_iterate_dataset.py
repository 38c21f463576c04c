"""Batches of a data set, against recorded orders."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from art.utils import iterate_dataset

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "iteration.json").read_text(encoding="utf-8"))
CASES = GOLDEN["iterate_dataset"]["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case["args"]))
def test_batches_are_the_recorded_ones(case: dict[str, Any]) -> None:
    batches = iterate_dataset(GOLDEN["iterate_dataset"]["dataset"], **{"use_tqdm": False, **case["args"]})
    assert [asdict(batch) for batch in batches] == case["batches"]


def test_resuming_gives_the_rest_of_the_same_walk() -> None:
    whole = list(iterate_dataset(list(range(7)), groups_per_step=3, num_epochs=3, use_tqdm=False))
    for step in range(10):
        rest = iterate_dataset(list(range(7)), groups_per_step=3, num_epochs=3, initial_step=step, use_tqdm=False)
        assert list(rest) == whole[step:]


def test_global_random_generator_is_left_alone() -> None:
    random.seed(7)
    expected = random.random()
    random.seed(7)
    list(iterate_dataset([1, 2, 3], num_epochs=2, use_tqdm=False))
    assert random.random() == expected


def test_empty_dataset_gives_nothing() -> None:
    assert list(iterate_dataset([], num_epochs=3, initial_step=4, use_tqdm=True)) == []


def test_progress_bar_counts_batches(capsys: pytest.CaptureFixture[str]) -> None:
    list(iterate_dataset([1, 2, 3, 4], groups_per_step=2, use_tqdm=True))
    assert "2/2" in capsys.readouterr().err
