"""Scripts that train: with the real backend, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripts.conftest import RunScript
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "base")


def test_notebook_whose_rollouts_ask_for_the_plain_name(run_script: RunScript, tiny_base: Path) -> None:
    facts = run_script("notebook.ipynb", BASE_MODEL=str(tiny_base))

    assert facts["step"] == 2
    assert facts["answered_by"] == {"0": ["agent-001@0"], "1": ["agent-001@1"], "2": ["agent-001@2"]}
    assert facts["inference_model_name"] == "agent-001@2"
    assert facts["checkpoints"] == ["0001", "0002"]  # the newest before the last step, and that step's


def test_one_backend_over_several_event_loops(run_script: RunScript, tiny_base: Path, tmp_path: Path) -> None:
    facts = run_script("several_loops.py", BASE_MODEL=str(tiny_base))

    assert facts["dataset"] == [[0, 0, 0, 2], [1, 0, 1, 2]]
    assert facts["failed"] == [2, 2]
    assert facts["served"]["inference_model_name"] == ["loops@0"] * 6 + ["loops@1"] * 6 + ["loops@2"]
    assert set(facts["served"]["litellm"]) == {"loops@2"}
    assert set(facts["served"]["stream"]) == {"loops@2"}
    assert facts["batches"] == [2, 1]
    assert facts["last"] == [3, "loops@3", "loops@3"]
    history = tmp_path / ".art/scripts/models/loops/history.jsonl"
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    assert [(row["step"], row.get("train/exception_rate")) for row in rows] == [(1, 0.25), (2, 0.25), (2, None)]
