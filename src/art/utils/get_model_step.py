"""Read from the disk how far a model was trained. Reading creates nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from art.checkpoints import newest_step
from art.utils.output_dirs import get_model_dir


class StoredModel(Protocol):
    """What is asked of a model here."""

    name: str
    project: str
    trainable: bool


def get_step_from_dir(output_dir: str) -> int:
    """Give the number of the newest checkpoint in a model's folder, 0 if there is none."""
    return newest_step(Path(output_dir)) or 0


def get_model_step(model: StoredModel, art_path: str) -> int:
    """Give the number of the model's newest checkpoint, 0 if there is none or it is not trainable."""
    if not model.trainable:
        return 0
    return get_step_from_dir(get_model_dir(model, art_path))
