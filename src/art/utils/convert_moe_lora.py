"""Adapters on fused experts, as older releases wrote them, split into adapters on single experts, which vLLM serves.

This package splits what it trains before it is written (`art.unsloth.save_adapter`); this is for checkpoints that are
there already. In them the experts' weights were stored input first, so that A and B change places.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.checkpoints import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE
from art.errors import CheckpointError, MissingDependencyError
from art.utils.atomic_files import replacing

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_FUSED_KEY = re.compile(r"^(?P<experts>.+\.mlp\.experts)\.(?P<inner>base_layer\.)?lora_(?P<side>[AB])\.weight$")
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def convert_checkpoint_if_needed(checkpoint_dir: str) -> None:
    """Split the fused experts of a checkpoint's adapter in place; do nothing where there are none.

    Raises:
        CheckpointError: The adapter's tensors do not fit its configuration.
        MissingDependencyError: safetensors and torch are not installed.
    """
    weights_path, config_path = Path(checkpoint_dir) / ADAPTER_WEIGHTS_FILE, Path(checkpoint_dir) / ADAPTER_CONFIG_FILE
    if not weights_path.exists() or not config_path.exists():
        return
    try:
        from safetensors import safe_open
        from safetensors.torch import load_file, save_file
    except ImportError as err:
        raise MissingDependencyError("safetensors", needed_for="converting an adapter", extra="backend") from err
    with safe_open(weights_path, framework="pt") as file:
        if not any(_FUSED_KEY.match(key) for key in file.keys()):  # noqa: SIM118 - it is no mapping
            return
    config: dict[str, Any] = json.loads(config_path.read_text(encoding="utf-8"))
    converted = convert_fused_moe_lora(load_file(weights_path), rank=config["r"])
    targets = {name for name in config.get("target_modules") or () if "experts" not in name}
    config |= {"target_modules": sorted(targets | set(_PROJECTIONS))}
    config.pop("target_parameters", None)
    with replacing(weights_path) as temporary:
        save_file({key: value.contiguous() for key, value in converted.items()}, temporary, metadata={"format": "pt"})
    with replacing(config_path) as temporary:
        temporary.write_text(json.dumps(config, indent=2), encoding="utf-8")
    logger.info("adapter's fused experts split: path=%s tensors=%d", checkpoint_dir, len(converted))


def convert_fused_moe_lora(
    tensors: dict[str, torch.Tensor],
    num_experts: int | None = None,
    rank: int | None = None,
    intermediate_size: int | None = None,
    hidden_size: int | None = None,
) -> dict[str, torch.Tensor]:
    """Split fused experts: E experts of rank r, hidden size H, intermediate size I.

    `experts.base_layer` holds gate and up, side by side: A is (E·r, 2·I), B is (H, E·r). `experts` holds down: A is
    (E·r, H), B is (I, E·r). Other tensors are handed on.

    Args:
        tensors: By key, as PEFT wrote them.
        num_experts: E. One of E and r is needed.
        rank: r.
        intermediate_size: I, checked where it is given.
        hidden_size: H, checked where it is given.

    Raises:
        CheckpointError: A tensor has not the size that it should have.
    """
    converted: dict[str, torch.Tensor] = {}
    for key, value in tensors.items():
        match = _FUSED_KEY.match(key)
        if match is None:
            converted[key] = value
            continue
        is_gate_and_up, is_a = match["inner"] is not None, match["side"] == "A"
        fused = value.shape[0 if is_a else 1]
        experts, r = _sizes(key, fused, num_experts, rank)
        wide = 2 * intermediate_size if intermediate_size is not None else None
        widths = {(True, True): wide, (True, False): hidden_size, (False, True): hidden_size}
        expected = widths.get((is_gate_and_up, is_a), intermediate_size)
        if expected is not None and value.shape[1 if is_a else 0] != expected:
            raise CheckpointError(f"{key} has the shape {tuple(value.shape)}, where {expected} was expected")
        side = "B" if is_a else "A"
        for expert in range(experts):
            own = value[expert * r : (expert + 1) * r] if is_a else value.reshape(-1, experts, r)[:, expert]
            parts = own.T.chunk(2) if is_gate_and_up and is_a else (own.T, own.T)
            names = _PROJECTIONS[:2] if is_gate_and_up else _PROJECTIONS[2:]
            for name, part in zip(names, parts, strict=False):
                converted[f"{match['experts']}.{expert}.{name}.lora_{side}.weight"] = part.clone()
    return converted


def _sizes(key: str, fused: int, num_experts: int | None, rank: int | None) -> tuple[int, int]:
    if num_experts is None and rank is None:
        raise CheckpointError(f"{key} is fused: give the adapter's rank to split it")
    experts = num_experts if num_experts is not None else fused // (rank or 1)
    r = rank if rank is not None else fused // experts
    if experts * r != fused or not fused:
        raise CheckpointError(f"{key} has {fused} rows for {experts} experts of rank {r}")
    return experts, r
