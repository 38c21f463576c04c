"""What `import art` costs and changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.fresh import run_fresh

BUDGET_S = 0.5
HEAVY = [
    "accelerate",
    "datasets",
    "httpx",
    "litellm",
    "matplotlib",
    "openai",
    "pandas",
    "peft",
    "polars",
    "pyarrow",
    "torch",
    "transformers",
    "trl",
    "unsloth",
    "vllm",
    "wandb",
]

TIMED = """
import json, time
began = time.perf_counter()
import art
print(json.dumps(time.perf_counter() - began))
"""

WATCHED = """
import json, multiprocessing, os, sys, threading
events = []
watched = ("socket.", "subprocess.", "os.fork")
sys.addaudithook(lambda event, args: events.append(event) if event.startswith(watched) else None)
before = dict(os.environ)
import art
print(json.dumps({
    "events": events,
    "changed_variables": sorted(k for k in {*before, *os.environ} if before.get(k) != os.environ.get(k)),
    "threads": threading.active_count(),
    "start_method": multiprocessing.get_start_method(allow_none=True),
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
}))
"""


def test_import_takes_less_than_its_budget(tmp_path: Path) -> None:
    assert min(run_fresh(TIMED, cwd=tmp_path) for _ in range(3)) < BUDGET_S


def test_import_loads_nothing_heavy_and_changes_nothing(tmp_path: Path) -> None:
    seen = run_fresh(WATCHED, cwd=tmp_path)

    assert set(HEAVY) & set(seen.pop("modules")) == set()
    assert seen == {"events": [], "changed_variables": [], "threads": 1, "start_method": None}


@pytest.mark.parametrize("below", [".", "a/b"])
def test_dotenv_in_or_above_the_working_directory_is_read_and_set_variables_win(tmp_path: Path, below: str) -> None:
    (tmp_path / ".env").write_text("ART_TEST_NEW=from-file\nART_TEST_SET=from-file\n")
    working_dir = tmp_path / below
    working_dir.mkdir(parents=True, exist_ok=True)

    seen = run_fresh(
        "import art, json, os; print(json.dumps([os.environ['ART_TEST_NEW'], os.environ['ART_TEST_SET']]))",
        cwd=working_dir,
        env={"ART_TEST_SET": "from-shell"},
    )

    assert seen == ["from-file", "from-shell"]


def test_import_works_in_a_directory_that_was_removed(tmp_path: Path) -> None:
    script = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); import art; print('true')"

    assert run_fresh(script, cwd=tmp_path) is True


SERIALIZER_WARNING = """
import json, warnings, art
with warnings.catch_warnings(record=True) as caught:
    warnings.warn_explicit("Pydantic serializer warnings: x", UserWarning, "main.py", 1, module="pydantic.main")
print(json.dumps(len(caught)))
"""


@pytest.mark.parametrize(("value", "warnings_seen"), [("1", 0), ("0", 1)])
def test_serializer_warnings_of_litellm_are_silenced_unless_wanted(
    tmp_path: Path, value: str, warnings_seen: int
) -> None:
    env = {"SUPPRESS_LITELLM_SERIALIZATION_WARNINGS": value, "PYTHONWARNINGS": "default"}
    script = SERIALIZER_WARNING.replace(
        "import json, warnings, art", "import json, warnings\nwarnings.resetwarnings()\nimport art"
    )

    assert run_fresh(script, cwd=tmp_path, env=env) == warnings_seen


def test_serializer_warnings_can_be_silenced_by_a_call(tmp_path: Path) -> None:
    env = {"SUPPRESS_LITELLM_SERIALIZATION_WARNINGS": "0", "PYTHONWARNINGS": "default"}
    script = SERIALIZER_WARNING.replace(
        "import json, warnings, art",
        """import json, warnings
warnings.resetwarnings()
from art.utils.suppress_litellm_serialization_warnings import suppress_litellm_serialization_warnings
suppress_litellm_serialization_warnings()""",
    )

    assert run_fresh(script, cwd=tmp_path, env=env) == 0
