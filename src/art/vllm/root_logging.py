"""Importing vLLM's HTTP layer must not silence the process it runs in.

One of its dependencies, `model_hosting_container_standards`, sets the root logger and all of the root's handlers to
ERROR when it is imported. In shared mode that process is the user's own: every later warning, ours and theirs, would
vanish.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def root_logging_kept() -> Iterator[None]:
    """Give the root logger and the handlers it had their levels back on exit."""
    root = logging.getLogger()
    level = root.level
    levels_of_handlers = [(handler, handler.level) for handler in root.handlers]
    try:
        yield
    finally:
        root.setLevel(level)
        for handler, level_before in levels_of_handlers:
            handler.setLevel(level_before)
