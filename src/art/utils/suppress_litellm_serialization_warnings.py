"""Silence a warning that litellm's answers cause in pydantic, which says nothing about the answers."""

from __future__ import annotations

import art


def suppress_litellm_serialization_warnings() -> None:
    """Do what importing `art` does unless `SUPPRESS_LITELLM_SERIALIZATION_WARNINGS` forbids it."""
    art._silence_serializer_warnings()
