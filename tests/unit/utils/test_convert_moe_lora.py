"""Fused experts become single ones. Two experts, rank 1, hidden size 2, intermediate size 1, or rank 2 where said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from art.errors import CheckpointError
from art.utils.convert_moe_lora import convert_checkpoint_if_needed, convert_fused_moe_lora

EXPERTS = "base_model.model.model.layers.0.mlp.experts"
ATTENTION = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
FUSED = {
    f"{EXPERTS}.base_layer.lora_A.weight": [[1.0, 2.0], [3.0, 4.0]],  # (E·r, 2·I)
    f"{EXPERTS}.base_layer.lora_B.weight": [[5.0, 6.0], [7.0, 8.0]],  # (H, E·r)
    f"{EXPERTS}.lora_A.weight": [[9.0, 10.0], [11.0, 12.0]],  # (E·r, H)
    f"{EXPERTS}.lora_B.weight": [[13.0, 14.0]],  # (I, E·r)
    ATTENTION: [[15.0, 16.0]],
}
SPLIT = {
    f"{EXPERTS}.0.gate_proj.lora_A.weight": [[5.0, 7.0]],
    f"{EXPERTS}.0.gate_proj.lora_B.weight": [[1.0]],
    f"{EXPERTS}.0.up_proj.lora_A.weight": [[5.0, 7.0]],
    f"{EXPERTS}.0.up_proj.lora_B.weight": [[2.0]],
    f"{EXPERTS}.0.down_proj.lora_A.weight": [[13.0]],
    f"{EXPERTS}.0.down_proj.lora_B.weight": [[9.0], [10.0]],
    f"{EXPERTS}.1.gate_proj.lora_A.weight": [[6.0, 8.0]],
    f"{EXPERTS}.1.gate_proj.lora_B.weight": [[3.0]],
    f"{EXPERTS}.1.up_proj.lora_A.weight": [[6.0, 8.0]],
    f"{EXPERTS}.1.up_proj.lora_B.weight": [[4.0]],
    f"{EXPERTS}.1.down_proj.lora_A.weight": [[14.0]],
    f"{EXPERTS}.1.down_proj.lora_B.weight": [[11.0], [12.0]],
    ATTENTION: [[15.0, 16.0]],
}


def tensors() -> dict[str, torch.Tensor]:
    return {key: torch.tensor(value) for key, value in FUSED.items()}


def as_lists(converted: dict[str, torch.Tensor]) -> dict[str, list[list[float]]]:
    return {key: value.tolist() for key, value in converted.items()}


def test_each_expert_gets_its_part() -> None:
    assert (
        as_lists(convert_fused_moe_lora(tensors(), num_experts=2, rank=1, intermediate_size=1, hidden_size=2)) == SPLIT
    )
    assert as_lists(convert_fused_moe_lora(tensors(), num_experts=2)) == SPLIT


def test_ranks_of_one_expert_stay_together() -> None:
    fused = {f"{EXPERTS}.lora_B.weight": torch.tensor([[1.0, 2.0, 3.0, 4.0]])}

    assert as_lists(convert_fused_moe_lora(fused, rank=2)) == {
        f"{EXPERTS}.0.down_proj.lora_A.weight": [[1.0], [2.0]],
        f"{EXPERTS}.1.down_proj.lora_A.weight": [[3.0], [4.0]],
    }


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"rank": 3},
        {"num_experts": 2, "rank": 2},
        {"rank": 1, "hidden_size": 3},
        {"rank": 1, "intermediate_size": 2},
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(CheckpointError, match=r"mlp\.experts"):
        convert_fused_moe_lora(tensors(), **sizes)


def test_checkpoint_is_converted_once(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "adapter_model.safetensors")
    config = {"r": 1, "target_modules": ["q_proj", "mlp.experts"], "target_parameters": ["mlp.experts.down_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))

    convert_checkpoint_if_needed(str(tmp_path))
    first = (tmp_path / "adapter_model.safetensors").read_bytes()
    convert_checkpoint_if_needed(str(tmp_path))

    assert (tmp_path / "adapter_model.safetensors").read_bytes() == first
    assert as_lists(load_file(tmp_path / "adapter_model.safetensors")) == SPLIT
    assert json.loads((tmp_path / "adapter_config.json").read_text()) == {
        "r": 1,
        "target_modules": ["down_proj", "gate_proj", "q_proj", "up_proj"],
    }
    assert len(list(tmp_path.iterdir())) == 2


def test_folder_without_an_adapter_is_left_alone(tmp_path: Path) -> None:
    convert_checkpoint_if_needed(str(tmp_path))

    assert list(tmp_path.iterdir()) == []
