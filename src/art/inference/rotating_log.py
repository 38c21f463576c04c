"""One log file per start: the newest has the plain name, older ones a number. Nothing is ever truncated."""

from __future__ import annotations

from pathlib import Path

from art.errors import ConfigurationError


def keep_log(path: Path) -> Path | None:
    """Give an existing, non-empty log file a number, so that it stays.

    Returns:
        Its new path; None where there was nothing to keep.

    Raises:
        ConfigurationError: It cannot be renamed.
    """
    try:
        if not path.exists() or path.stat().st_size == 0:
            return None
        number = 1
        while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
            number += 1
        path.rename(kept)
    except OSError as err:
        raise _unwritable(path, err) from err
    return kept


def check_log(path: Path) -> None:
    """Look whether a log can be written; nothing is written to it.

    Raises:
        ConfigurationError: The folder or file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
    except OSError as err:
        raise _unwritable(path, err) from err


def start_log(path: Path) -> Path:
    """Make room for a new log: an existing file `vllm.log` becomes `vllm.1.log`, `vllm.2.log`, … (oldest is 1).

    Returns:
        `path`, which exists and is empty.

    Raises:
        ConfigurationError: The folder or file cannot be written.
    """
    keep_log(path)
    check_log(path)
    return path


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"log file {path} cannot be written: {error}; choose another path for the backend")
