"""One log file per start: the newest has the plain name, older ones a number. Nothing is ever truncated."""

from __future__ import annotations

from pathlib import Path

from art.errors import ConfigurationError


def start_log(path: Path) -> Path:
    """Make room for a new log: an existing file `vllm.log` becomes `vllm.1.log`, `vllm.2.log`, … (oldest is 1).

    Returns:
        `path`, which exists and is empty.

    Raises:
        ConfigurationError: The folder or file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > 0:
            number = 1
            while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
                number += 1
            path.rename(kept)
        path.touch()
        with path.open("ab"):
            pass
    except OSError as err:
        raise ConfigurationError(
            f"log file {path} cannot be written: {err}; choose another path for the backend"
        ) from err
    return path
