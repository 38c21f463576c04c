"""Adapters on fused experts, rewritten for the inference engine, which knows experts one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from art.errors import CheckpointError

GATE_AND_UP, DOWN = "gate_up_proj", "down_proj"


def fused_expert_modules(peft_model: Any) -> dict[str, str]:
    """Return the modules that adapt a parameter holding all experts, by name, with the parameter's name."""
    return {
        name: module.parameter_name
        for name, module in peft_model.named_modules()
        if hasattr(module, "parameter_name") and getattr(module, "num_experts", 1) > 1
    }


def split_fused_experts(
    weights: Mapping[str, torch.Tensor], fused: Mapping[str, str], rank: int
) -> dict[str, torch.Tensor]:
    """Split the adapters of fused experts into one adapter for each projection of each expert.

    With E experts, the fused A is (E·r, in), expert after expert; the fused B is (out, r·E), in which the expert
    changes fastest. Gate and up share A, and lie one below the other in B.

    Args:
        weights: By key, as PEFT writes them.
        fused: Names of fused modules with the parameter that each adapts, from `fused_expert_modules`.
        rank: The adapter's rank.

    Raises:
        CheckpointError: A parameter is fused in a way that is not known.
    """
    split = dict(weights)
    for module, parameter in fused.items():
        side_a, side_b = split.pop(f"{module}.lora_A.weight"), split.pop(f"{module}.lora_B.weight")
        num_experts = side_a.shape[0] // rank
        all_a = side_a.reshape(num_experts, rank, -1)
        all_b = side_b.reshape(side_b.shape[0], rank, num_experts).permute(2, 0, 1)
        prefix = module.removesuffix(".base_layer")  # nested, where several parameters of the experts are adapted
        while prefix.endswith(".base_layer"):
            prefix = prefix.removesuffix(".base_layer")
        for expert, (a, b) in enumerate(zip(all_a, all_b, strict=True)):
            for projection, part in _projections(parameter, b).items():
                split[f"{prefix}.{expert}.{projection}.lora_A.weight"] = a
                split[f"{prefix}.{expert}.{projection}.lora_B.weight"] = part
    return split


def expert_projections(fused: Mapping[str, str]) -> set[str]:
    """Return the names of the single projections that fused parameters stand for."""
    names = {GATE_AND_UP: {"gate_proj", "up_proj"}, DOWN: {"down_proj"}}
    return set().union(*(names.get(parameter, set()) for parameter in fused.values()))


def _projections(parameter: str, side_b: torch.Tensor) -> dict[str, torch.Tensor]:
    if parameter == GATE_AND_UP:
        gate, up = side_b.chunk(2, dim=0)
        return {"gate_proj": gate, "up_proj": up}
    if parameter == DOWN:
        return {"down_proj": side_b}
    raise CheckpointError(
        f"the experts' parameter {parameter!r} is fused in a way that is not known; leave it out of the adapter"
    )
