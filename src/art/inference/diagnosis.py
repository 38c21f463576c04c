"""Say what is known about a server that does not answer: one message, one set of facts."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field
from typing import Any

from art.errors import LocalServingUnavailableError

LONGEST_LOG_LINE = 160  # of characters, in the message; the facts hold the whole lines


@dataclass
class ServingFacts:
    """What was found out. Fields that stay None are left out of the message.

    Attributes:
        url: Where the server was asked.
        adapter_name: The adapter that was being loaded.
        step: Its step.
        path: Its checkpoint, which is on disk.
        attempts: Requests sent.
        waited_s: Seconds spent.
        pid: The server's process.
        process_state: Whether it runs, or how it ended.
        exit_code: Its exit code, negative for a signal.
        health_before: What `/health` answered before.
        health_after: What it answered when everything else had failed.
        restarts: What was done about it, in words.
        log_path: The server's log.
        log_tail: The log's last lines.
        served_step: The step that rollouts got last.
    """

    url: str
    adapter_name: str | None = None
    step: int | None = None
    path: str | None = None
    attempts: int | None = None
    waited_s: float | None = None
    pid: int | None = None
    process_state: str | None = None
    exit_code: int | None = None
    health_before: str | None = None
    health_after: str | None = None
    restarts: str | None = None
    log_path: str | None = None
    log_tail: str = field(default="", repr=False)
    served_step: int | None = None

    def to_error(self, headline: str) -> LocalServingUnavailableError:
        """Return the error that carries these facts."""
        return LocalServingUnavailableError("\n".join([headline, *self._lines()]), facts=self.known())

    def known(self) -> dict[str, Any]:
        """Return the facts that are known, by name."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}

    def _lines(self) -> list[str]:
        rows: list[tuple[str, Any]] = [
            ("url", self.url),
            ("adapter", self.adapter_name),
            ("checkpoint", f"{self.path} (saved; a new run resumes from it)" if self.path else None),
            ("attempts", None if self.attempts is None else f"{self.attempts} in {self.waited_s or 0.0:.1f} s"),
            ("process", self.process_state),
            ("health before", self.health_before),
            ("health after", self.health_after),
            ("restarts", self.restarts),
            ("log", self.log_path),
        ]
        lines = [f"  {label + ':':<15}{value}" for label, value in rows if value]
        if self.log_tail:
            lines.append("  last lines of the log:")
            lines += [f"    | {_shortened(line)}" for line in self.log_tail.splitlines()]
        return lines


def fresh(error: LocalServingUnavailableError) -> LocalServingUnavailableError:
    """Return an equal error to be raised: one object that is raised often gathers the frames of all who caught it."""
    return copy.copy(error)


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LOG_LINE else line[: LONGEST_LOG_LINE - 1] + "…"
