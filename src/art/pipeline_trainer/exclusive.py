"""Keep two pipelines of one process from working on the same model: each would undo what the other saves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

_running: set[Path] = set()  # of the process, since two trainers know nothing of each other
_lock = threading.Lock()


@contextlib.contextmanager
def only_pipeline_of(model_dir: Path) -> Iterator[None]:
    """Hold a model's folder during the block. Other processes are kept out by the backend that serves the model.

    Raises:
        RuntimeError: Another pipeline holds it.
    """
    key = model_dir.absolute()
    with _lock:
        if key in _running:
            raise RuntimeError(
                f"another pipeline of this process trains the model in {key}: await its train() first, or give the "
                "models different names"
            )
        _running.add(key)
    try:
        yield
    finally:
        with _lock:
            _running.discard(key)
