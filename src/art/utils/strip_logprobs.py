"""Copies of objects without their token logprobs."""

from __future__ import annotations

import copy
import logging
from collections.abc import MutableMapping
from typing import Any

logger = logging.getLogger(__name__)


def strip_logprobs(obj: Any) -> Any:
    """Copy an object deeply, then drop every `logprobs` in it: keys of dicts go, attributes become None.

    Where the object cannot be copied, the object itself is returned, untouched.
    """
    try:
        copied = copy.deepcopy(obj)
    except Exception as err:  # noqa: BLE001 - whatever a foreign __deepcopy__ raises
        logger.warning("logprobs kept: object of type %s cannot be copied: %s", type(obj).__name__, err)
        return obj
    _strip_in_place(copied, set())
    return copied


def _strip_in_place(obj: Any, seen: set[int]) -> None:
    if obj is None or isinstance(obj, (str, bytes, int, float)) or id(obj) in seen:
        return
    seen.add(id(obj))
    if isinstance(obj, MutableMapping):
        obj.pop("logprobs", None)
        for value in obj.values():
            _strip_in_place(value, seen)
    elif isinstance(obj, (list, tuple, set, frozenset)):
        for item in obj:
            _strip_in_place(item, seen)
    elif hasattr(obj, "__dict__"):
        if getattr(obj, "logprobs", None) is not None:
            obj.logprobs = None
        for value in list(vars(obj).values()):
            _strip_in_place(value, seen)
