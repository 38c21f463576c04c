"""Run scripts in processes of their own, and read the facts that they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.chat_server import ChatServer
from tests.support.loop_thread import LoopThread
from tests.support.scripted_http import bind

REPOSITORY = Path(__file__).parents[2]
SHAPES = Path(__file__).parent / "shapes"
TIME_LIMIT_S = 280.0
# What a script's output holds when something went wrong that its exit code does not tell.
SIGNS_OF_TROUBLE = ("Traceback", "was never awaited", "Task was destroyed", "never retrieved", "Unclosed")

RunScript = Callable[..., Any]


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Give a function that runs a script of `shapes` in `tmp_path`, checks its end, and returns its facts."""

    def run(name: str, *arguments: str, **environment: str) -> Any:
        script = SHAPES / name
        is_notebook = script.suffix == ".ipynb"
        command = ["-m", "tests.scripts.run_notebook", str(script)] if is_notebook else [str(script), *arguments]
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        output = f"{done.stdout}\n{done.stderr}"
        (tmp_path / "output.log").write_text(output)
        tail = "\n".join(output.splitlines()[-60:])
        assert done.returncode == 0, tail
        # An engine in the script's own process tells of its end there; what it says is not the script's.
        own = [line for line in output.splitlines() if "(EngineCore " not in line]
        trouble = [n for n, line in enumerate(own) if any(sign in line for sign in SIGNS_OF_TROUBLE)]
        assert trouble == [], "\n".join(own[max(0, trouble[0] - 10) : trouble[0] + 40])
        return json.loads((tmp_path / "facts.json").read_text())

    return run


@pytest.fixture
def chat_server() -> Iterator[ChatServer]:
    loop = LoopThread()
    server = ChatServer()
    loop.run(server.start(bind("127.0.0.1", 0)))
    yield server
    loop.run(server.close())
    loop.close()
