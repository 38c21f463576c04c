"""Adapters on fused experts become adapters on single experts, with the same effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from art.checkpoint_manifest import Origin, read_manifest
from art.checkpoints import checkpoint_dir, stage_checkpoint, verify_checkpoint
from art.errors import CheckpointError
from art.utils.convert_moe_lora import convert_checkpoint_if_needed, convert_fused_moe_lora

E, R, H, INNER = 3, 2, 5, 4  # experts, rank, hidden size, expert size
EXPERTS = "base_model.model.model.layers.0.mlp.experts"
OTHER = "base_model.model.model.layers.0.self_attn.q_proj"


def older_form() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {
        f"{EXPERTS}.base_layer.lora_A.weight": (E * R, 2 * INNER),
        f"{EXPERTS}.base_layer.lora_B.weight": (H, E * R),
        f"{EXPERTS}.lora_A.weight": (E * R, H),
        f"{EXPERTS}.lora_B.weight": (INNER, E * R),
        f"{OTHER}.lora_A.weight": (R, H),
        f"{OTHER}.lora_B.weight": (H, R),
    }
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


def test_older_form_by_the_table() -> None:
    """Each number of the result is named by hand: expert e, rank index k, hidden h, inner i."""
    fused = older_form()
    single = convert_fused_moe_lora(fused, E, R, INNER, H)
    inner_a, inner_b = fused[f"{EXPERTS}.base_layer.lora_A.weight"], fused[f"{EXPERTS}.base_layer.lora_B.weight"]
    outer_a, outer_b = fused[f"{EXPERTS}.lora_A.weight"], fused[f"{EXPERTS}.lora_B.weight"]
    assert len(single) == 2 + E * 3 * 2
    for e in range(E):
        for k in range(R):
            row = e * R + k
            for projection, offset in (("gate_proj", 0), ("up_proj", INNER)):
                side_a = single[f"{EXPERTS}.{e}.{projection}.lora_A.weight"]
                side_b = single[f"{EXPERTS}.{e}.{projection}.lora_B.weight"]
                assert (side_a.shape, side_b.shape) == ((R, H), (INNER, R))
                assert [float(side_b[i, k]) for i in range(INNER)] == inner_a[row, offset : offset + INNER].tolist()
                assert [float(side_a[k, h]) for h in range(H)] == inner_b[:, row].tolist()
            side_a = single[f"{EXPERTS}.{e}.down_proj.lora_A.weight"]
            side_b = single[f"{EXPERTS}.{e}.down_proj.lora_B.weight"]
            assert (side_a.shape, side_b.shape) == ((R, INNER), (H, R))
            assert [float(side_b[h, k]) for h in range(H)] == outer_a[row].tolist()
            assert [float(side_a[k, i]) for i in range(INNER)] == outer_b[:, row].tolist()
    assert torch.equal(single[f"{OTHER}.lora_A.weight"], fused[f"{OTHER}.lora_A.weight"])


def test_newer_form_is_told_by_its_shapes_and_split_as_the_trainer_does() -> None:
    from art.unsloth.moe_adapter import split_fused_experts

    generator = torch.Generator().manual_seed(1)
    fused = {
        f"{EXPERTS}.base_layer.lora_A.weight": torch.randn(E * R, H, generator=generator),
        f"{EXPERTS}.base_layer.lora_B.weight": torch.randn(2 * INNER, E * R, generator=generator),
        f"{EXPERTS}.lora_A.weight": torch.randn(E * R, INNER, generator=generator),
        f"{EXPERTS}.lora_B.weight": torch.randn(H, E * R, generator=generator),
    }
    parameters = {f"{EXPERTS}.base_layer": "gate_up_proj", EXPERTS: "down_proj"}
    expected = split_fused_experts(fused, parameters, R)
    found = convert_fused_moe_lora(fused, rank=R)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_rank_is_that_of_the_other_modules_unless_given() -> None:
    assert convert_fused_moe_lora(older_form()).keys() == convert_fused_moe_lora(older_form(), rank=R).keys()
    with pytest.raises(CheckpointError, match="give rank"):
        convert_fused_moe_lora({key: value for key, value in older_form().items() if "experts" in key})
    with pytest.raises(CheckpointError, match="not those of 4 experts"):
        convert_fused_moe_lora(older_form(), num_experts=4)
    with pytest.raises(CheckpointError, match="maps 5 to 4, not 5 to 9"):
        convert_fused_moe_lora(older_form(), intermediate_size=9, hidden_size=H)
    incomplete = older_form()
    del incomplete[f"{EXPERTS}.lora_B.weight"]
    with pytest.raises(CheckpointError, match="only one of the two"):
        convert_fused_moe_lora(incomplete)


def save(model_dir: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    with stage_checkpoint(model_dir, 1, Origin("rl", "base")) as staging:
        save_file(tensors, staging / "adapter_model.safetensors")
        (staging / "adapter_config.json").write_text(json.dumps({"r": R, "lora_alpha": 16, **config}))
        (staging / "tokenizer.json").write_text("{}")
    return checkpoint_dir(model_dir, 1)


def test_checkpoint_changes_as_a_whole_and_once(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        older_form(),
        target_modules=["q_proj", "mlp.experts"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )
    convert_checkpoint_if_needed(str(path))
    assert load_file(path / "adapter_model.safetensors").keys() == convert_fused_moe_lora(older_form()).keys()
    config = json.loads((path / "adapter_config.json").read_text())
    assert config == {"r": R, "lora_alpha": 16, "target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}
    verify_checkpoint(path, digests=True)
    manifest = read_manifest(path)
    assert manifest is not None
    assert manifest.origin == Origin("rl", "base")
    assert [entry.name for entry in path.parent.iterdir()] == ["0001"]
    written = (path / "adapter_model.safetensors").stat().st_mtime_ns
    convert_checkpoint_if_needed(str(path))
    assert (path / "adapter_model.safetensors").stat().st_mtime_ns == written


def test_other_checkpoints_are_left_alone_and_broken_ones_named(tmp_path: Path) -> None:
    path = save(tmp_path, {key: value for key, value in older_form().items() if "experts" not in key})
    before = {entry.name: entry.read_bytes() for entry in path.iterdir()}
    convert_checkpoint_if_needed(str(path))
    assert {entry.name: entry.read_bytes() for entry in path.iterdir()} == before
    (path / "adapter_model.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="cannot be read"):
        convert_checkpoint_if_needed(str(path))
