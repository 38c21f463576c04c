"""The path under which scripts also know `art.retry`."""

from __future__ import annotations

from art.retries import retry

__all__ = ["retry"]
