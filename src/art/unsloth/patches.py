"""What must be changed in Unsloth for packed rows. Applied by an explicit call, safe to repeat."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import Any

from art.errors import IncompatibleDependencyError

_FLAG = "_unsloth_keep_padding_mask"
_LONG_ROWS_FLAG = "_unsloth_allow_packed_overlength"


def keep_attention_mask(backbone: Any) -> None:
    """Make Unsloth's fast forward honour the attention mask in training mode, and take rows of any length.

    Without this, its `LlamaModel_fast_forward` (2026.10.9; also used for Mistral, Qwen2, Qwen3, Granite and others)
    takes a mask for padding while training and drops it, so that completions in a packed row see their siblings, and
    cuts a row off at the length of the longest conversation. The flags are those that Unsloth sets for its own
    trainers; they can go when it does neither. Whether masks work is checked with numbers when a model is loaded, see
    `art.unsloth.self_check`.

    Args:
        backbone: The part of the model that makes hidden states.

    Raises:
        IncompatibleDependencyError: The fast forward does not know the flags.
    """
    forward = type(backbone).forward
    module = inspect.getmodule(inspect.unwrap(forward))
    is_fast = module is not None and module.__name__.startswith("unsloth.")
    for flag in (_FLAG, _LONG_ROWS_FLAG):
        if is_fast and module is not None and flag not in inspect.getsource(module):
            raise IncompatibleDependencyError(
                "unsloth", found_version=version("unsloth"), wanted="2026.10.9", missing=f"{flag} in {module.__name__}"
            )
        setattr(backbone, flag, True)
