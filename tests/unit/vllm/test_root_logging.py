"""Whoever logged before vLLM came is heard afterwards too."""

from __future__ import annotations

import contextlib
import logging

from art.vllm.root_logging import root_logging_kept


def test_levels_are_what_they_were_even_after_a_failure():
    root = logging.getLogger()
    handler = logging.NullHandler(logging.INFO)
    root.addHandler(handler)
    level = root.level
    try:
        with contextlib.suppress(ImportError), root_logging_kept():
            root.setLevel(logging.CRITICAL)
            handler.setLevel(logging.CRITICAL)
            raise ImportError("half of it")
        assert (root.level, handler.level) == (level, logging.INFO)
    finally:
        root.removeHandler(handler)


def test_a_handler_that_came_meanwhile_keeps_its_level():
    root = logging.getLogger()
    newcomer = logging.NullHandler(logging.DEBUG)
    try:
        with root_logging_kept():
            root.addHandler(newcomer)
        assert newcomer.level == logging.DEBUG
    finally:
        root.removeHandler(newcomer)
