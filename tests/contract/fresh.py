"""Run a script in an interpreter of its own, where nothing of the project is loaded yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIME_LIMIT_S = 120


def run_fresh(script: str, *, cwd: Path, env: Mapping[str, str] | None = None) -> Any:
    """Run a script and return what it printed on its last line, read as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
