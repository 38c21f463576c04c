"""When something last happened in a pipeline, and what each part of it is doing."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Part:
    """A worker or a stage.

    Attributes:
        doing: What it is doing, in words.
        since: When it began that, on `time.monotonic()`'s clock.
    """

    doing: str = "not started"
    since: float = field(default_factory=time.monotonic)

    def describe(self) -> str:
        """Say what it is doing, and for how long."""
        return f"{self.doing} for {time.monotonic() - self.since:.1f} s"


class Activity:
    """The parts of a pipeline and their progress.

    Attributes:
        changed_at: When something last happened, on `time.monotonic()`'s clock.
    """

    def __init__(self) -> None:
        self.changed_at = time.monotonic()
        self._parts: dict[str, Part] = {}

    def touch(self) -> None:
        """Note that something happened."""
        self.changed_at = time.monotonic()

    def enter(self, name: str, doing: str) -> None:
        """Note that a part begins something else, which counts as progress."""
        self._parts[name] = Part(doing)
        self.touch()

    def leave(self, name: str) -> None:
        """Forget a part that has ended."""
        self._parts.pop(name, None)
        self.touch()

    def describe(self) -> list[str]:
        """Say in a line for each part what it is doing, the one that has done it longest first."""
        parts = sorted(self._parts.items(), key=lambda entry: entry[1].since)
        return [f"{name}: {part.describe()}" for name, part in parts]


def innermost_wait(coroutine: Coroutine[Any, Any, Any] | None) -> str:
    """Say in which function and line a suspended coroutine waits."""
    current: Any = coroutine
    place = "unknown place"
    while current is not None:
        frame = getattr(current, "cr_frame", None) or getattr(current, "gi_frame", None)
        if frame is None:
            break
        place = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
        current = getattr(current, "cr_await", None) or getattr(current, "gi_yieldfrom", None)
    return place
