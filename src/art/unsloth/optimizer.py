"""The optimizer of an adapter, from the trainer's arguments."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import torch

from art.dev.settings import CPU_OPTIMIZER, TRAINER_DEFAULTS
from art.errors import ConfigurationError

logger = logging.getLogger(__name__)

_BITSANDBYTES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "adamw_8bit": ("AdamW", {"optim_bits": 8}),
    "adamw_bnb_8bit": ("AdamW", {"optim_bits": 8}),
    "paged_adamw_8bit": ("AdamW", {"optim_bits": 8, "is_paged": True}),
    "paged_adamw": ("AdamW", {"is_paged": True}),
    "paged_adamw_32bit": ("AdamW", {"is_paged": True}),
}
_TORCH = (CPU_OPTIMIZER, "adamw_torch_fused", "adamw")

# What of `trainer_args` is read by this trainer; the rest belongs to trainers that own the loop over the data.
_READ = frozenset(
    {
        "optim",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "weight_decay",
        "max_grad_norm",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "learning_rate",
        "output_dir",
    }
)


def make_optimizer(
    parameters: Iterable[torch.nn.Parameter], trainer_args: Mapping[str, Any], device: torch.device
) -> torch.optim.Optimizer:
    """Make the optimizer that `trainer_args["optim"]` names, with its betas, epsilon and weight decay.

    The learning rate is set at every step. An 8-bit or paged optimizer becomes plain AdamW, with a warning, where
    bitsandbytes is not installed or there is no GPU: the state of an adapter is small.

    Raises:
        ConfigurationError: The name is none of those supported.
    """
    name = trainer_args.get("optim", TRAINER_DEFAULTS["optim"])
    name = str(name.value if isinstance(name, Enum) else name)
    common: dict[str, Any] = {
        "lr": float(trainer_args.get("learning_rate", TRAINER_DEFAULTS["learning_rate"])),
        "betas": (
            float(trainer_args.get("adam_beta1", TRAINER_DEFAULTS["adam_beta1"])),
            float(trainer_args.get("adam_beta2", TRAINER_DEFAULTS["adam_beta2"])),
        ),
        "eps": float(trainer_args.get("adam_epsilon", 1e-8)),
        "weight_decay": float(trainer_args.get("weight_decay", TRAINER_DEFAULTS["weight_decay"])),
    }
    parameters = list(parameters)
    if name in _TORCH:
        return torch.optim.AdamW(parameters, fused=True, **common)
    if name not in _BITSANDBYTES:
        known = ", ".join([*_TORCH, *_BITSANDBYTES])
        raise ConfigurationError(f"trainer_args['optim'] is {name!r}; supported for adapters: {known}")
    optimizer = _make_with_bitsandbytes(name, parameters, common) if device.type == "cuda" else None
    if optimizer is None:
        logger.warning("optimizer %s needs a GPU and bitsandbytes: using %s", name, CPU_OPTIMIZER)
        return torch.optim.AdamW(parameters, fused=True, **common)
    return optimizer


def log_ignored_arguments(trainer_args: Mapping[str, Any]) -> None:
    """Say once which of the caller's trainer arguments have no effect here."""
    ignored = sorted(
        key for key, value in trainer_args.items() if key not in _READ and TRAINER_DEFAULTS.get(key) != value
    )
    if ignored:
        logger.info("trainer_args without effect on this trainer: %s", ", ".join(ignored))


def _make_with_bitsandbytes(
    name: str, parameters: list[torch.nn.Parameter], common: Mapping[str, Any]
) -> torch.optim.Optimizer | None:
    try:
        import bitsandbytes
    except ImportError:
        return None
    class_name, extra = _BITSANDBYTES[name]
    optimizer: torch.optim.Optimizer = getattr(bitsandbytes.optim, class_name)(parameters, **common, **extra)
    return optimizer
