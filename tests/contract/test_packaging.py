"""What an installer is told."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "vllm", "transformers", "peft", "unsloth", "wandb", "trl")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_base_install_is_light() -> None:
    assert [line for line in pyproject()["project"]["dependencies"] if line.startswith(HEAVY)] == []


def test_overrides_of_the_lock_and_of_the_pins_are_the_same() -> None:
    lines = (ROOT / "requirements/cpu-overrides.txt").read_text().splitlines()

    assert {line for line in lines if not line.startswith("#")} == set(
        pyproject()["tool"]["uv"]["override-dependencies"]
    )


def test_every_pin_has_a_hash_and_no_file_names_an_index() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text()
        assert "://" not in text, path
        assert not any(line.startswith("-") for line in text.splitlines()), path
        if path.name != "cpu-overrides.txt":
            assert text.count("==") <= text.count("--hash=sha256:"), path
