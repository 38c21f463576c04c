"""Names that become folders: what a project, a model and a split may be called."""

from __future__ import annotations

from art.errors import ConfigurationError


def check_path_part(what: str, name: str) -> None:
    """Refuse a name that cannot be one folder, or that would clash with inference names (`name@step`).

    Raises:
        ConfigurationError: The name is empty, "." or "..", or contains a path separator, "@", or a null character.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"{what} must be a string, got {type(name).__name__}")
    _check_folder_name(what, name)
    for forbidden in ("/", "\\", "@"):
        if forbidden in name:
            raise ConfigurationError(
                f"{what} {name!r} contains {forbidden!r}; it names a folder and is part of the inference name, "
                "so use letters, digits, '-', '_' and '.'"
            )


def check_split(split: str) -> None:
    """Refuse a split that would leave the folder of the trajectories. Slashes are allowed: they make subfolders.

    Raises:
        ConfigurationError: It is no string, or a part of it is empty, "." or "..", or contains a null character.
    """
    if not isinstance(split, str):
        raise ConfigurationError(f"split must be a string such as 'val', got {split!r}")
    for part in split.split("/"):
        _check_folder_name("split", part)


def _check_folder_name(what: str, name: str) -> None:
    if not name.strip() or name in (".", "..") or "\0" in name:
        raise ConfigurationError(f"{what} {name!r} cannot name a folder")
