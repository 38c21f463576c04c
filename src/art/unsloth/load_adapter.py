"""Read an adapter's files into a model that already has LoRA layers of the same shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from art.checkpoints import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, verify_checkpoint
from art.errors import CheckpointError, CheckpointIncompleteError

# What the inference engine does not apply, or applies otherwise: it knows plain low-rank updates of one rank and scale.
_UNSUPPORTED = (
    "alpha_pattern",
    "exclude_modules",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "trainable_token_indices",
    "use_dora",
)
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Beginnings of `init_lora_weights` that take the adapter's first values out of the base model's weights."""


def read_adapter_config(adapter_dir: Path) -> dict[str, Any]:
    """Read `adapter_config.json`.

    Raises:
        CheckpointIncompleteError: The folder lacks files.
        CheckpointError: It does not describe a LoRA adapter, or one of a kind that cannot be served.
    """
    verify_checkpoint(adapter_dir)
    config: dict[str, Any] = json.loads((adapter_dir / ADAPTER_CONFIG_FILE).read_text(encoding="utf-8"))
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{adapter_dir} holds an adapter of the kind {config.get('peft_type')!r}, not LORA")
    unsupported = [f"{key}={config[key]!r}" for key in _UNSUPPORTED if config.get(key)]
    unsupported += [f"bias={config['bias']!r}"] if config.get("bias", "none") != "none" else []
    start = config.get("init_lora_weights")
    unsupported += [f"init_lora_weights={start!r}"] if str(start).startswith(CHANGES_BASE) else []
    if unsupported:
        raise CheckpointError(
            f"the adapter at {adapter_dir} was made with {', '.join(unsupported)}, which trainer and inference engine "
            "cannot both apply: merge it into its base model, or start from another one"
        )
    return config


def load_adapter_weights(peft_model: Any, adapter_dir: Path, adapter_name: str = "default") -> None:
    """Put saved weights into an adapter of the model.

    Args:
        peft_model: The PEFT model.
        adapter_dir: The checkpoint.
        adapter_name: The adapter to fill.

    Raises:
        CheckpointIncompleteError: Weights that the adapter needs are not there.
        CheckpointError: There are weights that the model has no place for, or of another shape.
    """
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    weights: dict[str, torch.Tensor] = load_file(adapter_dir / ADAPTER_WEIGHTS_FILE)
    try:
        outcome = set_peft_model_state_dict(peft_model, weights, adapter_name=adapter_name)
    except RuntimeError as err:
        raise CheckpointError(f"the adapter at {adapter_dir} does not fit the model: {err}") from err
    missing = [key for key in outcome.missing_keys if "lora_" in key and f".{adapter_name}." in key]
    if missing:
        raise CheckpointIncompleteError(
            f"the adapter at {adapter_dir} lacks {len(missing)} weights of this model, such as {missing[0]}",
            path=str(adapter_dir),
            missing=missing,
        )
    if outcome.unexpected_keys:
        raise CheckpointError(
            f"the adapter at {adapter_dir} has {len(outcome.unexpected_keys)} weights that this model has no place "
            f"for, such as {outcome.unexpected_keys[0]}: it belongs to another base model"
        )
