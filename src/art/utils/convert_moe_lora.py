"""Adapters on fused experts, as older releases saved them, rewritten for the inference engine: one for each expert."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.checkpoints import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, rewrite_checkpoint
from art.errors import CheckpointError, MissingDependencyError

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_FUSED_KEY = re.compile(r"^(?P<experts>.*\.mlp\.experts)\.(?P<inner>base_layer\.)?lora_(?P<side>[AB])\.weight$")
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def convert_checkpoint_if_needed(checkpoint_dir: str) -> None:
    """Rewrite a checkpoint whose adapter is on fused experts; leave any other as it is.

    Weights, configuration and manifest change together.

    Args:
        checkpoint_dir: The checkpoint's folder.

    Raises:
        CheckpointError: The files cannot be read or written, or are fused in a way that is not known.
        MissingDependencyError: safetensors or torch is not installed.
    """
    try:
        from safetensors import safe_open
        from safetensors.torch import load_file, save_file
    except ImportError as err:
        raise MissingDependencyError("safetensors", needed_for="converting adapters", extra="train") from err
    path = Path(checkpoint_dir)
    try:
        with safe_open(path / ADAPTER_WEIGHTS_FILE, framework="pt") as file:
            if not any(_FUSED_KEY.match(key) for key in file.keys()):  # noqa: SIM118 - no mapping
                return
        config: dict[str, Any] = json.loads((path / ADAPTER_CONFIG_FILE).read_text(encoding="utf-8"))
        tensors = load_file(path / ADAPTER_WEIGHTS_FILE)
    except Exception as err:
        raise CheckpointError(f"the adapter at {path} cannot be read: {err}") from err
    converted = convert_fused_moe_lora(tensors, rank=config["r"])
    with rewrite_checkpoint(path) as staging:
        for name in (ADAPTER_WEIGHTS_FILE, ADAPTER_CONFIG_FILE):
            (staging / name).unlink()  # a link to the file that is still in use
        save_file(converted, staging / ADAPTER_WEIGHTS_FILE, metadata={"format": "pt"})
        text = json.dumps(_with_single_experts(config), indent=2)
        (staging / ADAPTER_CONFIG_FILE).write_text(text, encoding="utf-8")
    logger.info("adapter on fused experts converted: path=%s tensors=%d -> %d", path, len(tensors), len(converted))


def convert_fused_moe_lora(
    tensors: dict[str, torch.Tensor],
    num_experts: int | None = None,
    rank: int | None = None,
    intermediate_size: int | None = None,
    hidden_size: int | None = None,
) -> dict[str, torch.Tensor]:
    """Split the adapters of fused experts into one for each projection of each expert; the rest stays as it is.

    Two forms are known, and told apart by their shapes. For E experts, rank r, hidden size H and expert size I:

    - As older releases train them, input and output swapped: gate and up have A (E·r, 2I) and B (H, E·r), down has
      A (E·r, H) and B (I, E·r); in each B the r columns of an expert lie together.
    - As PEFT 0.21 and later train them: gate and up have A (E·r, H) and B (2I, r·E), down has A (E·r, I) and
      B (H, r·E); in each B the expert changes fastest.

    Where only one of the two is adapted, it is taken for the older form.

    Args:
        tensors: By key, as in the file.
        num_experts: E; None: from the shapes and the rank.
        rank: r; None: that of the adapter's other modules.
        intermediate_size: I; checked if given.
        hidden_size: H; checked if given.

    Raises:
        CheckpointError: Shapes do not fit together.
    """
    fused: dict[str, dict[tuple[bool, str], torch.Tensor]] = {}
    converted: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        match = _FUSED_KEY.match(key)
        if match is None:
            converted[key] = tensor
        else:
            fused.setdefault(match["experts"], {})[match["inner"] is not None, match["side"]] = tensor
    if fused and rank is None:
        rank = _rank_of_others(converted)
    for experts, parts in fused.items():
        assert rank is not None
        for projection, sides in _split(experts, parts, rank, num_experts).items():
            for expert, (side_a, side_b) in enumerate(sides):
                _check_size(experts, projection, (side_a, side_b), intermediate_size, hidden_size)
                converted[f"{experts}.{expert}.{projection}.lora_A.weight"] = side_a.contiguous().clone()
                converted[f"{experts}.{expert}.{projection}.lora_B.weight"] = side_b.contiguous().clone()
    return converted


_Sides = list[tuple["torch.Tensor", "torch.Tensor"]]


def _split(
    experts: str, parts: dict[tuple[bool, str], torch.Tensor], rank: int, num_experts: int | None
) -> dict[str, _Sides]:
    is_older = _is_older_form(parts)
    split: dict[str, _Sides] = {}
    for is_inner in (True, False):
        fused_a, fused_b = parts.get((is_inner, "A")), parts.get((is_inner, "B"))
        if fused_a is None and fused_b is None:
            continue
        if fused_a is None or fused_b is None:
            raise CheckpointError(f"only one of the two matrices of {experts} is there")
        count = num_experts or fused_a.shape[0] // rank
        if (fused_a.shape[0], fused_b.shape[1]) != (count * rank, count * rank):
            raise CheckpointError(
                f"the adapter of {experts} has shapes {tuple(fused_a.shape)} and {tuple(fused_b.shape)}, which are not "
                f"those of {count} experts of rank {rank}"
            )
        all_a = fused_a.reshape(count, rank, -1)
        if is_older:
            all_b = fused_b.reshape(fused_b.shape[0], count, rank).permute(1, 2, 0)
            pairs = [(b, a.T) for a, b in zip(all_a, all_b, strict=True)]  # input and output are swapped
        else:
            all_b = fused_b.reshape(fused_b.shape[0], rank, count).permute(2, 0, 1)
            pairs = list(zip(all_a, all_b, strict=True))
        if is_inner:
            halves = [b.chunk(2, dim=0) for _, b in pairs]
            split["gate_proj"] = [(a, gate) for (a, _), (gate, _) in zip(pairs, halves, strict=True)]
            split["up_proj"] = [(a, up) for (a, _), (_, up) in zip(pairs, halves, strict=True)]
        else:
            split["down_proj"] = pairs
    return split


def _is_older_form(parts: dict[tuple[bool, str], torch.Tensor]) -> bool:
    if len(parts) < 4:
        return True
    inner_a, inner_b, outer_a, outer_b = (
        parts[place] for place in ((True, "A"), (True, "B"), (False, "A"), (False, "B"))
    )
    return not (inner_b.shape[0] == 2 * outer_a.shape[1] and inner_a.shape[1] == outer_b.shape[0])


def _check_size(
    experts: str,
    projection: str,
    sides: tuple[torch.Tensor, torch.Tensor],
    intermediate_size: int | None,
    hidden_size: int | None,
) -> None:
    sizes = [sides[0].shape[1], sides[1].shape[0]]
    wanted = [intermediate_size, hidden_size] if projection == "down_proj" else [hidden_size, intermediate_size]
    if any(size is not None and size != found for size, found in zip(wanted, sizes, strict=True)):
        raise CheckpointError(
            f"{projection} of {experts} maps {sizes[0]} to {sizes[1]}, not {wanted[0]} to {wanted[1]}"
        )


def _rank_of_others(tensors: dict[str, torch.Tensor]) -> int:
    ranks = {tensor.shape[0] for key, tensor in tensors.items() if key.endswith(".lora_A.weight")}
    if len(ranks) != 1:
        raise CheckpointError(f"the rank cannot be told from the other modules, which have {sorted(ranks)}: give rank")
    return int(ranks.pop())


def _with_single_experts(config: dict[str, Any]) -> dict[str, Any]:
    targets: Iterable[str] | str = config.get("target_modules") or []
    kept = [name for name in ([targets] if isinstance(targets, str) else targets) if "experts" not in name]
    changed = {key: value for key, value in config.items() if key != "target_parameters"}
    changed["target_modules"] = [*kept, *(name for name in _PROJECTIONS if name not in kept)]
    return changed
