"""Run a notebook's cells as Jupyter does: one after the other, on an event loop that is running already.

`python -m tests.scripts.run_notebook NOTEBOOK`
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType


async def run_cells(notebook: Path) -> None:
    """Run the code cells in a module of their own; `await` may stand at their top level."""
    namespace = ModuleType("__notebook__").__dict__
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        code = compile("".join(cell["source"]), f"<cell {number}>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        outcome = eval(code, namespace)
        if inspect.iscoroutine(outcome):
            await outcome


if __name__ == "__main__":
    asyncio.run(run_cells(Path(sys.argv[1])))
