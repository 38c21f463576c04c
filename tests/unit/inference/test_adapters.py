"""Adapters that no engine could serve as what they are: refused before they are sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from art.errors import AdapterLoadError
from art.inference.adapters import check_adapter
from art.inference.runtime import AdapterFiles


def adapter(folder: Path, name: str = "agent@3", **config: Any) -> AdapterFiles:
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, **config}))
    return AdapterFiles(step=3, name=name, path=folder, source=folder)


def test_a_fitting_adapter_passes(tmp_path: Path) -> None:
    check_adapter(adapter(tmp_path, rank_pattern={"q_proj": 16}), max_lora_rank=16, base_model_name="base")


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [
        ({"r": 32}, "agent@3", "its rank 32 is above the engine's max_lora_rank 16"),
        ({"rank_pattern": {"q_proj": 64}}, "agent@3", "its rank 64 is above"),
        ({"modules_to_save": ["lm_head"]}, "agent@3", r"modules_to_save=\['lm_head'\] cannot be served"),
        ({}, "base@3", "its name is the base model's own, so the base model would answer"),
    ],
)
def test_what_would_be_served_as_something_else_is_refused(
    tmp_path: Path, config: dict[str, Any], name: str, words: str
) -> None:
    with pytest.raises(AdapterLoadError, match=words) as caught:
        check_adapter(adapter(tmp_path, name, **config), max_lora_rank=16, base_model_name="base@3")
    assert (caught.value.step, caught.value.path) == (3, str(tmp_path))
