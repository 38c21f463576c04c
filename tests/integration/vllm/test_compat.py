"""Importing the real vLLM, in a process of its own: an import cannot be undone."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

SCRIPT = """
import logging
logging.basicConfig(format="%(levelname)s heard: %(message)s")
from art.vllm.compat import load_vllm_api
load_vllm_api()
logging.getLogger("art.anything").warning("a step was not served")
logging.getLogger("users.own").warning("their own words")
"""


def test_warnings_are_heard_after_vllm_is_imported():
    pytest.importorskip("vllm")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240, check=True)
    assert "WARNING heard: a step was not served" in done.stderr
    assert "WARNING heard: their own words" in done.stderr
