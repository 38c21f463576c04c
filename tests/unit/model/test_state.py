"""The state file."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from art.model import Model
from art.model.state import StateFile, deep_merge


def prompted(tmp_path: Path) -> Model[Any, Any]:
    return Model(name="agent", project="mail", base_path=str(tmp_path))


def state_path(tmp_path: Path) -> Path:
    return tmp_path / "mail" / "models" / "agent" / "state.json"


def test_state_is_written_and_read(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    assert model.read_state() is None
    model.overwrite_state({"seen": [1, 2], "nested": {"a": 1}})
    assert model.read_state() == {"seen": [1, 2], "nested": {"a": 1}}
    assert state_path(tmp_path).read_text().startswith('{\n  "seen"')


def test_merging_goes_into_dicts_and_replaces_the_rest(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    assert model.merge_state({"nested": {"a": 1, "b": [1, 2]}}) == {"nested": {"a": 1, "b": [1, 2]}}
    expected = {"nested": {"a": 1, "b": [3], "c": {"d": 1}}, "x": None}
    assert model.merge_state({"nested": {"b": [3], "c": {"d": 1}}, "x": None}) == expected
    assert model.read_state() == expected


def test_merging_leaves_its_arguments_alone() -> None:
    base: dict[str, Any] = {"a": {"b": 1}}
    assert deep_merge(base, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert base == {"a": {"b": 1}}


def test_overwriting_keeps_reserved_keys(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    model.merge_state({"_pipeline_trainer": {"step": 3}, "_metrics_builder_state": {"cum_state": {"costs/cum/all": 1}}})
    stale = {"_pipeline_trainer": {"step": 1}, "mine": 1}
    model.overwrite_state(stale)
    assert model.read_state() == {
        "mine": 1,
        "_pipeline_trainer": {"step": 3},
        "_metrics_builder_state": {"cum_state": {"costs/cum/all": 1}},
    }


def test_write_state_is_an_old_name(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    with pytest.warns(DeprecationWarning, match="overwrite_state"):
        model.write_state({"a": 1})
    assert model.read_state() == {"a": 1}


def test_state_that_is_not_json_is_refused_and_leaves_the_file(tmp_path: Path) -> None:
    model = prompted(tmp_path)
    model.overwrite_state({"a": 1})
    with pytest.raises(TypeError):
        model.overwrite_state({"a": object()})
    assert model.read_state() == {"a": 1}


@pytest.mark.parametrize("text", ['{"half', "[1]"])
def test_broken_file_is_named(tmp_path: Path, text: str) -> None:
    state_path(tmp_path).parent.mkdir(parents=True)
    state_path(tmp_path).write_text(text)
    with pytest.raises(ValueError, match=r"state\.json"):
        prompted(tmp_path).read_state()


def test_threads_lose_no_key(tmp_path: Path) -> None:
    def merge(number: int) -> None:
        for turn in range(10):
            StateFile(tmp_path).merge({f"{number}-{turn}": 1})

    threads = [threading.Thread(target=merge, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads((tmp_path / "state.json").read_text())) == 40
