"""Tell at once that a base model cannot be one, before anything is started for it."""

from __future__ import annotations

import json
from pathlib import Path

from art.errors import ConfigurationError
from art.unsloth.warm_start import find_starting_adapter


def check_base_model(base_model: str) -> None:
    """Check a path to a base model, or to an adapter to start from. What looks like a Hub id is left to the loader.

    Raises:
        ConfigurationError: The path does not exist or holds no model.
    """
    folder = Path(base_model)
    what = f"base_model {base_model!r}"
    if not folder.exists():
        if folder.is_absolute() or base_model.startswith((".", "~")) or base_model.count("/") > 1:
            raise ConfigurationError(f"{what} does not exist: it must be a folder with a model, or a Hub id")
        return
    if not folder.is_dir():
        raise ConfigurationError(f"{what} is a file: it must be a folder with a model, or a Hub id")
    adapter = find_starting_adapter(base_model)
    if adapter is not None:
        try:
            check_base_model(adapter.base_model)
        except ConfigurationError as err:
            raise ConfigurationError(f"{what} is an adapter whose own base model is unusable: {err}") from err
        return
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{what} holds no model: the folder has no config.json") from None
    except (OSError, ValueError) as err:
        raise ConfigurationError(f"{what} holds no model: its config.json cannot be read: {err}") from err
    if not isinstance(config, dict) or not config.get("model_type"):
        raise ConfigurationError(f"{what} holds no model: its config.json does not say of which type (model_type)")
