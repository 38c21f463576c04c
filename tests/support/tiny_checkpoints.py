"""Checkpoints of a few bytes, and what their files must be."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from art.checkpoint_manifest import TRAINER_STATE_FILE, Origin
from art.checkpoints import checkpoint_dir, stage_checkpoint


def write_adapter(folder: Path, value: float = 1.0, padding_bytes: int = 50) -> None:
    """Write the smallest adapter, one float32, and a file for the tokenizer and for the trainer's state."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    content = struct.pack("<Q", len(header)) + header + struct.pack("<f", value)
    (folder / "adapter_model.safetensors").write_bytes(content)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / TRAINER_STATE_FILE).write_bytes(b"s" * padding_bytes)


def save_checkpoint(
    model_dir: Path, step: int, *, value: float = 1.0, origin: Origin | None = None, padding_bytes: int = 50
) -> Path:
    """Save one as a step of a model."""
    with stage_checkpoint(model_dir, step, origin) as staging:
        write_adapter(staging, value, padding_bytes)
    return checkpoint_dir(model_dir, step)


def contents(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder, by its name below it."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
