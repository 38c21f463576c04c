"""Where the repository that holds this package begins."""

from __future__ import annotations

from pathlib import Path


def get_repo_root_path() -> str:
    """Find the nearest folder with `.git` above this package's files.

    A virtual environment inside a repository lies below that repository's root, so its root is the answer; where
    nothing is found the answer is ".", which depends on the working directory.
    """
    for folder in Path(__file__).resolve().parents:
        if (folder / ".git").exists():
            return str(folder)
    return "."
