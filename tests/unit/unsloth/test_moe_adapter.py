from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from art.errors import CheckpointError
from art.unsloth.moe_adapter import expert_projections, fused_expert_modules, split_fused_experts
from art.unsloth.save_adapter import save_adapter


@pytest.fixture(scope="module")
def moe_model() -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        moe_intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=3,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
    )
    lora = LoraConfig(
        r=2,
        lora_alpha=2,
        target_modules=["q_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(Qwen3MoeForCausalLM(config), lora)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_()
    return model


def test_single_experts_get_the_updates_of_the_fused_ones(moe_model: Any) -> None:
    from peft import get_peft_model_state_dict

    weights = get_peft_model_state_dict(moe_model)
    fused = fused_expert_modules(moe_model)
    assert sorted(fused.values()) == ["down_proj", "gate_up_proj"]
    split = split_fused_experts(weights, fused, rank=2)

    experts = "base_model.model.model.layers.0.mlp.experts"
    assert len(split) == 2 + 3 * 3 * 2  # q_proj; three projections of three experts, A and B
    updates = {
        module.parameter_name: module.get_delta_weight("default")
        for module in moe_model.modules()
        if hasattr(module, "parameter_name")
    }
    for expert in range(3):
        single = {
            name: split[f"{experts}.{expert}.{name}.lora_B.weight"] @ split[f"{experts}.{expert}.{name}.lora_A.weight"]
            for name in ("gate_proj", "up_proj", "down_proj")
        }
        gate_and_up = torch.cat([single["gate_proj"], single["up_proj"]])
        torch.testing.assert_close(gate_and_up, updates["gate_up_proj"][expert], atol=1e-6, rtol=0)
        torch.testing.assert_close(single["down_proj"], updates["down_proj"][expert], atol=1e-6, rtol=0)
    assert expert_projections(fused) == {"gate_proj", "up_proj", "down_proj"}


def test_saved_files_know_single_experts_only(moe_model: Any, tmp_path: Path) -> None:
    save_adapter(moe_model, Mock(), tmp_path)
    weights = load_file(tmp_path / "adapter_model.safetensors")
    assert len(weights) == 20
    assert not any("base_layer" in key or key.endswith("experts.lora_A.weight") for key in weights)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert sorted(config["target_modules"]) == ["down_proj", "gate_proj", "q_proj", "up_proj"]
    assert config["target_parameters"] is None
    assert moe_model.peft_config["default"].target_parameters is not None


def test_unknown_fused_parameters_are_refused() -> None:
    weights = {"m.lora_A.weight": torch.ones(4, 5), "m.lora_B.weight": torch.ones(6, 4)}
    with pytest.raises(CheckpointError, match="qkv"):
        split_fused_experts(weights, {"m": "qkv"}, rank=2)


def test_nothing_fused_is_left_as_it_is() -> None:
    weights = {"m.lora_A.weight": torch.ones(2, 5), "m.lora_B.weight": torch.ones(6, 2)}
    assert split_fused_experts(weights, {}, rank=2) == weights
