"""Timestamped, coloured lines on standard output, for scripts. The library itself logs through `logging`."""

from __future__ import annotations

import sys
import time


class _C:
    """Terminal codes."""

    RESET = "\033[0m"
    DIM = "\033[2m"
    BOLD = "\033[1m"
    RED = "\033[31m"
    GREEN = "\033[32m"
    YELLOW = "\033[33m"
    BLUE = "\033[34m"
    MAGENTA = "\033[35m"
    CYAN = "\033[36m"
    GRAY = "\033[90m"


def _write(label: str, colour: str, msg: object) -> None:
    stamp = time.strftime("%H:%M:%S")
    sys.stdout.write(f"{_C.DIM}[{stamp}]{_C.RESET} {colour}{label}{_C.RESET} {msg}\n")
    sys.stdout.flush()


def info(msg: object) -> None:
    """Show a line of information."""
    _write("[INFO]", _C.BLUE, msg)


def step(msg: object) -> None:
    """Show that a step begins."""
    _write("[STEP]", _C.CYAN, msg)


def ok(msg: object) -> None:
    """Show that something succeeded."""
    _write("[OK]", _C.GREEN, msg)


def warn(msg: object) -> None:
    """Show a warning."""
    _write("[WARN]", _C.YELLOW, msg)


def err(msg: object) -> None:
    """Show an error."""
    _write("[ERR]", _C.RED, msg)


def dim(msg: object) -> None:
    """Show a line of little importance."""
    sys.stdout.write(f"{_C.DIM}{msg}{_C.RESET}\n")
    sys.stdout.flush()
