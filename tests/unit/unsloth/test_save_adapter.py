from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from art.checkpoints import verify_checkpoint
from art.errors import CheckpointError, CheckpointIncompleteError
from art.unsloth.load_adapter import load_adapter_weights, read_adapter_config
from art.unsloth.save_adapter import check_servable, save_adapter
from tests.support.lora_models import load_model

MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
CONFIG = {"r": 2, "bias": "none", "modules_to_save": None, "use_dora": False, "rank_pattern": {}}


class NoTokenizer:
    def save_pretrained(self, path: Path) -> None:
        (path / "tokenizer.json").write_text("{}")


def pair(rank_a: int = 2, rank_b: int = 2) -> dict[str, torch.Tensor]:
    return {f"{MODULE}.lora_A.weight": torch.ones(rank_a, 8), f"{MODULE}.lora_B.weight": torch.ones(6, rank_b)}


@pytest.fixture
def saved(tiny_qwen3: Path, tmp_path: Path) -> tuple[Any, Path]:
    model = load_model(tiny_qwen3)
    save_adapter(model.peft_model, NoTokenizer(), tmp_path)
    return model, tmp_path


def test_files_are_those_of_an_adapter(saved: tuple[Any, Path]) -> None:
    model, path = saved
    verify_checkpoint(path)
    weights = load_file(path / "adapter_model.safetensors")
    # 2 layers, 7 projections, A and B.
    assert len(weights) == 28
    assert set(weights) >= {f"{MODULE}.lora_A.weight", f"{MODULE}.lora_B.weight"}
    config = json.loads((path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 8, 16)
    assert config["inference_mode"] is True
    assert model.peft_model.peft_config["default"].inference_mode is False
    assert (path / "tokenizer.json").exists()


def test_other_adapters_of_the_model_are_left_out(saved: tuple[Any, Path], tmp_path: Path) -> None:
    model, path = saved
    model.peft_model.load_adapter(path, adapter_name="reference")
    target = tmp_path / "again"
    target.mkdir()
    save_adapter(model.peft_model, NoTokenizer(), target)
    assert {entry.name for entry in target.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
    }
    assert (
        load_file(target / "adapter_model.safetensors").keys() == load_file(path / "adapter_model.safetensors").keys()
    )


def test_a_sound_pair_is_servable() -> None:
    check_servable(pair(), CONFIG)
    check_servable(pair(4, 4), {**CONFIG, "rank_pattern": {"q_proj": 4}})


@pytest.mark.parametrize(
    ("weights", "config", "named"),
    [
        ({}, CONFIG, "no weights"),
        ({f"{MODULE}.lora_A.weight": torch.ones(2, 8)}, CONFIG, "only one of the two matrices"),
        (pair(3, 3), CONFIG, "configuration states 2"),
        (pair(2, 3), CONFIG, "ranks"),
        ({**pair(), "base_model.model.lm_head.modules_to_save.weight": torch.ones(1)}, CONFIG, "modules_to_save"),
        ({key.removeprefix("base_model."): value for key, value in pair().items()}, CONFIG, "the key model.model"),
        ({**pair(), f"{MODULE}.lora_B.weight": torch.tensor([[1.0, torch.nan]])}, CONFIG, "not finite"),
        (pair(), {**CONFIG, "bias": "all"}, "bias='all'"),
        (pair(), {**CONFIG, "use_dora": True}, "use_dora"),
        (pair(), {**CONFIG, "modules_to_save": ["lm_head"]}, "modules_to_save"),
    ],
)
def test_what_the_engine_would_not_apply_is_refused(
    weights: dict[str, torch.Tensor], config: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        check_servable(weights, config)


def test_weights_that_do_not_fit_the_model_are_refused(saved: tuple[Any, Path]) -> None:
    model, path = saved
    file = path / "adapter_model.safetensors"
    weights = load_file(file)
    key = f"{MODULE}.lora_A.weight"

    save_file({name: value for name, value in weights.items() if name != key}, file)
    with pytest.raises(CheckpointIncompleteError, match="lacks 1 weights"):
        load_adapter_weights(model.peft_model, path)
    save_file({**weights, key.replace("layers.0", "layers.9"): weights[key].clone()}, file)
    with pytest.raises(CheckpointError, match=r"no place for.*layers\.9"):
        load_adapter_weights(model.peft_model, path)
    save_file({**weights, key: torch.ones(8, 5)}, file)
    with pytest.raises(CheckpointError, match="does not fit"):
        load_adapter_weights(model.peft_model, path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"use_dora": True}, "use_dora=True"),
        ({"rank_pattern": {"v_proj": 4}}, "rank_pattern={'v_proj': 4}"),
        ({"alpha_pattern": {"v_proj": 4}}, "alpha_pattern="),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save="),
        ({"bias": "lora_only"}, "bias='lora_only'"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights='pissa_niter_4'"),
    ],
)
def test_adapters_that_would_be_served_as_something_else_are_refused(
    saved: tuple[Any, Path], change: dict[str, Any], complaint: str
) -> None:
    _, path = saved
    config = read_adapter_config(path)
    (path / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError, match=r"was made with .*cannot both apply") as caught:
        read_adapter_config(path)
    assert complaint in str(caught.value)


def test_only_lora_adapters_are_read(saved: tuple[Any, Path]) -> None:
    _, path = saved
    assert read_adapter_config(path)["r"] == 8
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
    with pytest.raises(CheckpointError, match="IA3"):
        read_adapter_config(path)
    (path / "adapter_config.json").unlink()
    with pytest.raises(CheckpointIncompleteError):
        read_adapter_config(path)
