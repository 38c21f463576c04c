"""Start from an adapter: `base_model` may be a folder with one, of an earlier run or of PEFT.

The model below it is then the base model, for trainer and server alike, and step 0 is that adapter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from art import dev
from art.checkpoints import ADAPTER_CONFIG_FILE
from art.errors import CheckpointError


@dataclass(frozen=True)
class StartingAdapter:
    """An adapter to start from.

    Attributes:
        path: Its folder.
        base_model: The model that it was made for, Hub id or path.
        lora_args: Its rank, alpha and target modules.
    """

    path: Path
    base_model: str
    lora_args: dict[str, Any]


def find_starting_adapter(base_model: str) -> StartingAdapter | None:
    """Read what a folder with an adapter says about itself; None for whatever else `base_model` is.

    Raises:
        CheckpointError: Its `adapter_config.json` cannot be read, or does not name the model that it belongs to.
    """
    path = Path(base_model)
    file = path / ADAPTER_CONFIG_FILE
    if not file.is_file():
        return None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        found = config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise CheckpointError(
            f"base_model {base_model!r} is an adapter that cannot be read: {type(err).__name__}: {err}"
        ) from err
    if not isinstance(found, str) or not found:
        raise CheckpointError(
            f"base_model {base_model!r} is an adapter that does not say for which model: set "
            f"base_model_name_or_path in its {ADAPTER_CONFIG_FILE}"
        )
    lora_args = {key: config[key] for key in ("r", "lora_alpha", "target_modules") if config.get(key)}
    return StartingAdapter(path, found, lora_args)


def start_from_adapter(base_model: str, config: dev.InternalModelConfig) -> tuple[str, dev.InternalModelConfig]:
    """Return base model and configuration, with an adapter that is to be started from put where the trainer looks.

    The adapter may be given as `base_model` or as `init_args["model_name"]`. The server is prepared for its rank.

    Raises:
        CheckpointError: See `find_starting_adapter`.
    """
    init_args = config.get("init_args") or {}
    as_base = find_starting_adapter(base_model)
    adapter = find_starting_adapter(init_args["model_name"]) if init_args.get("model_name") else as_base
    if as_base is not None:
        base_model = as_base.base_model
    if adapter is None:
        return base_model, config
    given = {**adapter.lora_args, **(config.get("peft_args") or {})}
    given["r"] = adapter.lora_args.get("r", given.get("r"))
    completed = {**config, "init_args": {**init_args, "model_name": str(adapter.path)}, "peft_args": given}
    return base_model, cast(dev.InternalModelConfig, completed)
