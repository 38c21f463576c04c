"""Write an adapter so that the inference engine applies it: the files of PEFT, checked by what the engine reads."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from art.checkpoints import ADAPTER_WEIGHTS_FILE
from art.errors import CheckpointError
from art.unsloth.language_model import ADAPTER_NAME
from art.unsloth.moe_adapter import expert_projections, fused_expert_modules, split_fused_experts

KEY_PREFIX = "base_model.model."
_LORA_KEY = re.compile(r"^(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")


def save_adapter(peft_model: Any, tokenizer: Any, path: Path) -> None:
    """Write the model's trained adapter, and the tokenizer, into an existing folder.

    Adapters loaded for comparison are left out. The weights are those of this moment, copied from the device.

    Args:
        peft_model: The PEFT model.
        tokenizer: The tokenizer whose files go along.
        path: An existing folder, not yet visible to any reader.

    Raises:
        CheckpointError: The engine would not apply this adapter as it is.
        OSError: The file system refused.
    """
    from peft import get_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    weights: dict[str, torch.Tensor] = get_peft_model_state_dict(
        peft_model, adapter_name=ADAPTER_NAME, save_embedding_layers=False
    )
    config = copy.copy(peft_model.peft_config[ADAPTER_NAME])
    config.inference_mode = True
    fused = fused_expert_modules(peft_model)
    if fused:
        weights = split_fused_experts(weights, fused, config.r)
        config.target_modules = {*(config.target_modules or ()), *expert_projections(fused)}
        config.target_parameters = None
    check_servable(weights, config.to_dict())
    weights = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in weights.items()}
    try:
        save_file(weights, path / ADAPTER_WEIGHTS_FILE, metadata={"format": "pt"})
    except SafetensorError as err:  # a full disk, for one
        raise OSError(f"{path / ADAPTER_WEIGHTS_FILE} cannot be written: {err}") from err
    config.save_pretrained(path)
    tokenizer.save_pretrained(path)


def check_servable(weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Check that the engine will apply all of an adapter.

    Args:
        weights: By key, as they will be in the file.
        config: As it will be in the file.

    Raises:
        CheckpointError: A key is none that the engine knows, a pair of matrices is not complete or not of the rank
            that the configuration states, a number is not finite, or there are parts that are no low-rank update.
    """
    problems = [f"{key} in its configuration" for key in ("modules_to_save", "use_dora") if config.get(key)]
    if config.get("bias", "none") != "none":
        problems.append(f"bias={config['bias']!r} in its configuration")
    if not weights:
        problems.append("no weights at all")
    ranks: dict[str, dict[str, int]] = {}
    for key, value in weights.items():
        match = _LORA_KEY.match(key)
        if match is None or not key.startswith(KEY_PREFIX):
            problems.append(f"the key {key}")
            continue
        if not bool(torch.isfinite(value).all()):
            problems.append(f"numbers in {key} that are not finite")
        ranks.setdefault(match["module"], {})[match["side"]] = value.shape[0 if match["side"] == "A" else 1]
    stated = {config.get("r"), *(config.get("rank_pattern") or {}).values()}
    for module, sides in ranks.items():
        if set(sides) != {"A", "B"}:
            problems.append(f"only one of the two matrices of {module}")
        elif sides["A"] != sides["B"] or sides["A"] not in stated:
            problems.append(f"ranks {sides} of {module}, while its configuration states {config.get('r')}")
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise CheckpointError(f"the inference engine would not apply this adapter: {'; '.join(problems[:3])}{more}")
