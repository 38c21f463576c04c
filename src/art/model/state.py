"""The persistent state of a model: one JSON object in `state.json`, shared by everything that works on the model."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from art.errors import DataError
from art.utils import atomic_files

METRICS_BUILDER_STATE_KEY = "_metrics_builder_state"
PIPELINE_STATE_KEY = "_pipeline_trainer"
RESERVED_KEYS = frozenset({METRICS_BUILDER_STATE_KEY, PIPELINE_STATE_KEY})


class StateFile:
    """Reads and changes a state file; a change is a locked read-modify-write that replaces the file in one step.

    The lock is a file beside it, so it holds between threads and between processes.
    """

    def __init__(self, model_dir: str | Path) -> None:
        self._path = Path(model_dir) / "state.json"

    def read(self) -> dict[str, Any] | None:
        """Give the state, or None where there is no file.

        Raises:
            DataError: The file does not hold a JSON object.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            state = json.loads(content)
        except ValueError as err:  # no JSON, or no text
            raise DataError(
                f"{self._path} is not valid JSON ({err}); repair it, or move it away to start anew"
            ) from err
        if not isinstance(state, dict):
            raise DataError(f"{self._path} holds a {type(state).__name__}, not an object; repair it or move it away")
        return state

    def overwrite(self, state: Mapping[str, Any]) -> None:
        """Replace the state. Reserved keys that are stored keep their values."""
        with self._locked():
            stored = self.read() or {}
            self._write({**state, **{key: stored[key] for key in RESERVED_KEYS if key in stored}})

    def merge(self, updates: Mapping[str, Any]) -> dict[str, Any]:
        """Merge dicts deeply into the state, replacing lists and scalars, and give the result."""
        with self._locked():
            merged = deep_merge(self.read() or {}, updates)
            self._write(merged)
            return merged

    def put(self, key: str, value: Any) -> None:
        """Set one key as a whole."""
        self.change(key, lambda _: value)

    def change(self, key: str, change: Callable[[Any], Any]) -> None:
        """Set one key to what a function makes of its value, which is None at first; nobody else writes meanwhile."""
        with self._locked():
            state = self.read() or {}
            self._write({**state, key: change(state.get(key))})

    def _write(self, state: Mapping[str, Any]) -> None:
        atomic_files.write_text(self._path, json.dumps(state, indent=2))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.with_name(".state.lock"), os.O_CREAT | os.O_RDWR, 0o666)
        try:
            _lock(descriptor)
            yield
        finally:
            os.close(descriptor)  # which gives the lock back


def deep_merge(base: Mapping[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
    """Merge dicts of dicts into a new one; values of `updates` win, lists are replaced."""
    merged = dict(base)
    for key, value in updates.items():
        stored = merged.get(key)
        if isinstance(stored, Mapping) and isinstance(value, Mapping):
            merged[key] = deep_merge(stored, value)
        else:
            merged[key] = value
    return merged


def _lock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:
        return  # Windows: replacing the file in one step still keeps readers safe.
    fcntl.flock(descriptor, fcntl.LOCK_EX)
