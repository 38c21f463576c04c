"""Say why an engine did not start: its core is a process of its own, whose reason is only in the log."""

from __future__ import annotations

from pathlib import Path

from art.errors import ServerStartError
from art.inference.process_server import root_cause
from art.processes import log_tail
from art.vllm.engine import EnginePlan

_READ_BYTES = 262_144  # of the log, from where the start began


def size_of(log_path: Path) -> int:
    """Return how long a log is, 0 where there is none; what a start writes comes after it."""
    try:
        return log_path.stat().st_size
    except OSError:
        return 0


def start_error(error: BaseException, plan: EnginePlan, log_path: Path, log_began: int) -> ServerStartError:
    """Make the error of a failed start.

    Args:
        error: What vLLM raised here.
        plan: What was to be started.
        log_path: Where the service's output goes. Where it goes elsewhere, the file has not grown, and is not read.
        log_began: Its size when the start began.
    """
    cause = _innermost(error)
    in_log = root_cause(_written_since(log_path, log_began))
    if in_log and in_log not in cause:
        cause = f"{in_log} (reported as {cause})"
    return ServerStartError(
        f"the inference engine for {plan.engine_args.get('model')} did not start: {cause}; log: {log_path}",
        command=f"in-process engine {dict(plan.engine_args)}",
        log_path=str(log_path),
        log_tail=log_tail(log_path) if size_of(log_path) > log_began else "",
    )


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _written_since(log_path: Path, log_began: int) -> str:
    try:
        with log_path.open("rb") as file:
            file.seek(log_began)
            return file.read(_READ_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
