from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from art.errors import CheckpointError, ConfigurationError
from art.local.base_model import check_base_model
from art.unsloth.warm_start import start_from_adapter


def write_adapter(folder: Path, **config: Any) -> str:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def test_an_adapter_as_base_model_brings_its_own_base_model(tmp_path: Path) -> None:
    adapter = write_adapter(
        tmp_path / "0007", base_model_name_or_path="org/base", r=32, lora_alpha=64, target_modules=["q_proj"]
    )
    config: Any = {"engine_args": {"max_loras": 2}}
    base_model, completed = start_from_adapter(adapter, config)
    assert base_model == "org/base"
    assert completed == {
        "engine_args": {"max_loras": 2},
        "init_args": {"model_name": adapter},
        "peft_args": {"r": 32, "lora_alpha": 64, "target_modules": ["q_proj"]},
    }
    assert config == {"engine_args": {"max_loras": 2}}


def test_the_rank_is_that_of_the_adapter_whatever_is_asked_for(tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", base_model_name_or_path="org/base", r=32, lora_alpha=64)
    asked: Any = {"init_args": {"model_name": adapter, "dtype": "float32"}, "peft_args": {"r": 8, "lora_alpha": 16}}
    base_model, completed = start_from_adapter("org/other", asked)
    assert base_model == "org/other"  # the adapter was given beside the base model
    assert completed["init_args"] == {"model_name": adapter, "dtype": "float32"}
    assert completed["peft_args"] == {"r": 32, "lora_alpha": 16}


@pytest.mark.parametrize("init_args", [{}, {"model_name": "org/other"}])
def test_other_base_models_are_left_alone(init_args: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config: Any = {"init_args": init_args}
    assert start_from_adapter(str(tmp_path), config) == (str(tmp_path), config)
    assert start_from_adapter("org/base", config) == ("org/base", config)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"base_model_name_or_path": null}', "does not say for which"),
    ],
)
def test_adapters_that_tell_too_little(content: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=f"base_model '{tmp_path}' is an adapter that {complaint}"):
        check_base_model(str(tmp_path))


def test_the_base_model_of_an_adapter_is_checked_too(tmp_path: Path) -> None:
    check_base_model(write_adapter(tmp_path / "good", base_model_name_or_path="org/base"))
    lost = write_adapter(tmp_path / "lost", base_model_name_or_path=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match=r"whose own base model is unusable: .*nowhere' does not exist"):
        check_base_model(lost)
