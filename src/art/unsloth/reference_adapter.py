"""The policy that a KL penalty compares with: the base model, or a saved adapter loaded beside the trained one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from art.errors import ConfigurationError
from art.unsloth.language_model import ADAPTER_NAME, LanguageModel

_REFERENCE_NAME = "reference"

# Enter it, and the model computes with the reference policy until it is left.
ReferencePolicy = Callable[[], AbstractContextManager[Any]]


@contextmanager
def reference_policy(model: LanguageModel, adapter_path: str | None) -> Iterator[ReferencePolicy]:
    """Provide the reference policy while a batch is trained.

    An adapter is read anew each time and removed afterwards, so that its folder may change between steps and no
    checkpoint ever holds it.

    Args:
        model: The model in training.
        adapter_path: Folder of the reference adapter; None: the base model.

    Raises:
        ConfigurationError: There is no adapter at that path that fits the model.
    """
    if adapter_path is None:
        yield model.peft_model.disable_adapter
        return
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        try:
            model.peft_model.load_adapter(adapter_path, adapter_name=_REFERENCE_NAME, is_trainable=False)
        except (OSError, ValueError, RuntimeError) as err:
            _remove(model)
            raise ConfigurationError(f"kl_ref_adapter_path {adapter_path!r} holds no adapter to use: {err}") from err
    try:
        yield lambda: _active(model, _REFERENCE_NAME)
    finally:
        _remove(model)


@contextmanager
def _active(model: LanguageModel, adapter_name: str) -> Iterator[None]:
    model.peft_model.set_adapter(adapter_name)
    try:
        yield
    finally:
        model.peft_model.set_adapter(ADAPTER_NAME)


def _remove(model: LanguageModel) -> None:
    if _REFERENCE_NAME in model.peft_model.peft_config:
        model.peft_model.delete_adapter(_REFERENCE_NAME)
    model.peft_model.set_adapter(ADAPTER_NAME)
