"""The documentation can be built where only the client is installed."""

from pathlib import Path

from tests.contract.fresh import run_fresh

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, sys
from dev.docs import hooks, reference
parts = {name: len(part()) for name, part in reference.PARTS.items()}
heavy = {"torch", "vllm", "transformers", "peft", "unsloth", "wandb", "litellm"}
print(json.dumps([parts, sorted(heavy & set(sys.modules))]))
"""


def test_generated_parts_need_no_package_of_the_machine_side() -> None:
    parts, heavy = run_fresh(SCRIPT, cwd=ROOT)
    assert heavy == []
    assert min(parts.values()) > 30
