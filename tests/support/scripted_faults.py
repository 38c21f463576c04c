"""What the scripted server does wrong: set for each start by a file, changed over HTTP while it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

FOLDER_VARIABLE = "SCRIPTED_SERVER_DIR"


@dataclass
class Faults:
    """Faults of one server; numbers count down as they are met.

    Attributes:
        start_delay_s: Seconds before it accepts connections.
        start_exit_code: It ends before it accepts any.
        ignore_sigterm: Asking it to end is no use.
        grandchild: It starts a process that would outlive it.
        load_delay_s: Seconds that each load takes.
        load_statuses: What the next loads are answered, before anything is done.
        load_refusal: Loads are refused with 400 and these words.
        drop_before_load: That many loads lose their connection before anything is done.
        drop_after_load: That many loads work and lose their reply.
        unlisted: Loads are answered with 200 and change nothing.
        answer_as: Adapters loaded now answer with the weights before them, or with the base model's.
        exit_on_load: It ends when asked to load: an exit code, or a signal's negative number.
        exit_after_load: It ends after a load that works, before its reply.
        list_delay_s: Seconds that the model list takes.
        completion_statuses: What the next completions are answered.
        drop_completions: That many completions lose their connection unanswered.
        exit_on_completion: It ends at the next completion.
        exit_on_text: It ends at each completion whose body holds this text.
        engine: "silent": completions are never answered; "failing": they are answered with 500. `/health` says 200.
        break_streams: That many streaming answers end in the middle.
        break_bodies: That many other answers end in the middle.
        answer_delay_s: Seconds before an answer begins.
        token_delay_s: Seconds between two events of a streaming answer.
        garbage: Completions and the model list are answered with 200 and this text.
        drops_after_errors: Connections end, unannounced, after an error reply.
    """

    start_delay_s: float = 0.0
    start_exit_code: int | None = None
    ignore_sigterm: bool = False
    grandchild: bool = False
    load_delay_s: float = 0.0
    load_statuses: list[int] = field(default_factory=list)
    load_refusal: str | None = None
    drop_before_load: int = 0
    drop_after_load: int = 0
    unlisted: bool = False
    answer_as: Literal["previous", "base"] | None = None
    exit_on_load: int | None = None
    exit_after_load: int | None = None
    list_delay_s: float = 0.0
    completion_statuses: list[int] = field(default_factory=list)
    drop_completions: int = 0
    exit_on_completion: int | None = None
    exit_on_text: str | None = None
    engine: Literal["alive", "silent", "failing"] = "alive"
    break_streams: int = 0
    break_bodies: int = 0
    answer_delay_s: float = 0.0
    token_delay_s: float = 0.0
    garbage: str | None = None
    drops_after_errors: bool = False

    def change(self, orders: Mapping[str, Any]) -> None:
        """Set some of the fields."""
        unknown = set(orders) - {known.name for known in fields(self)}
        if unknown:
            raise ValueError(f"no such faults: {sorted(unknown)}")
        for name, value in orders.items():
            setattr(self, name, value)


def script_starts(folder: Path, starts: Sequence[Faults]) -> dict[str, str]:
    """Say what each start of a server does wrong, the last for all that follow.

    Returns:
        Variables for the server's environment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "faults.json").write_text(json.dumps([asdict(faults) for faults in starts]))
    return {FOLDER_VARIABLE: str(folder)}


def started_pids(folder: Path) -> list[int]:
    """Return the processes that were started so far, oldest first."""
    path = folder / "starts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def note_start() -> int:
    """Write down that this process was started; return how many were before it."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return 0
    before = len(started_pids(Path(folder)))
    with (Path(folder) / "starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return before


def faults_of_start(number: int) -> Faults:
    """Return what the start after `number` others does wrong."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return Faults()
    starts = json.loads((Path(folder) / "faults.json").read_text())
    return Faults(**starts[min(number, len(starts) - 1)]) if starts else Faults()
