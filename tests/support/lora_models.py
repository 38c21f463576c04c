"""Load a base model with an adapter that does something, as a trainer would hold it in the middle of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def load_model(base_model: Path, *, loader: Any = None, **sections: dict[str, object]) -> Any:
    """Load a model in training mode whose adapter's B matrices are random, not 0.

    Args:
        base_model: Folder of the base model.
        loader: See `art.unsloth.state.build_model`.
        **sections: Sections of the model's configuration, such as `peft_args`.
    """
    from art.dev.get_model_config import get_model_config
    from art.unsloth.state import build_model

    config = get_model_config(str(base_model), "unused", sections or None, has_cuda=False)  # type: ignore[arg-type]
    model = build_model(str(base_model), config, None, loader=loader)
    randomize_adapter(model)
    model.peft_model.train()
    return model


def randomize_adapter(model: Any, seed: int = 7, scale: float = 0.2) -> None:
    """Draw the adapter's B matrices anew."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.adapter_parameters().items():
            if "lora_B" in name:
                value.copy_(torch.randn(value.shape, generator=generator) * scale)
