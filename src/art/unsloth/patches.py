"""What must be changed in Unsloth for packed rows. Applied by an explicit call, safe to repeat."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any

from art.errors import IncompatibleDependencyError

_FLAG = "_unsloth_keep_padding_mask"


def keep_attention_mask(backbone: Any) -> None:
    """Make Unsloth's fast forward honour the attention mask in training mode.

    Without it, its `LlamaModel_fast_forward` (2026.10.9; also used for Mistral, Qwen2, Qwen3, Granite and others)
    takes a mask for padding while training and drops it, so that completions in a packed row see their siblings. The
    flag is the one that Unsloth sets for its own trainers. It can go when the mask is kept without it. Whether it
    works is checked with numbers when a model is loaded, see `art.unsloth.self_check`.

    Args:
        backbone: The part of the model that makes hidden states.

    Raises:
        IncompatibleDependencyError: The fast forward does not know the flag.
    """
    forward = type(backbone).forward
    module = inspect.getmodule(inspect.unwrap(forward))
    is_fast = module is not None and module.__name__.startswith("unsloth.")
    if is_fast and module is not None and _FLAG not in inspect.getsource(module):
        raise IncompatibleDependencyError(
            "unsloth", found_version=version("unsloth"), wanted="2026.10.9", missing=f"{_FLAG} in {module.__name__}"
        )
    setattr(backbone, _FLAG, True)
