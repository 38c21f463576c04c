"""The base install is enough for the client."""

from __future__ import annotations

from pathlib import Path

from tests.contract.fresh import run_fresh

WITHOUT_EXTRAS = """
import sys
class Absent:
    names = {
        "accelerate", "datasets", "peft", "safetensors", "torch", "transformers", "trl", "unsloth", "unsloth_zoo",
        "vllm", "wandb",
    }
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import asyncio, json
"""

GATHER = """
import art
async def rollout(reward):
    return art.Trajectory(messages_and_choices=[{"role": "user", "content": "hi"}], reward=reward)
async def main():
    groups = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(r) for r in (0.0, 1.0)) for _ in range(2)], pbar_desc=None
    )
    return [sorted(t.reward for t in group) for group in groups]
rewards = asyncio.run(main())
loaded = sorted({"litellm", "pandas", "polars", "pyarrow"} & {name.partition(".")[0] for name in sys.modules})
print(json.dumps([rewards, loaded]))
"""


def test_rollouts_run_without_the_extras_and_load_nothing_optional(tmp_path: Path) -> None:
    assert run_fresh(WITHOUT_EXTRAS + GATHER, cwd=tmp_path) == [[[0.0, 1.0], [0.0, 1.0]], []]


def test_star_import_works_without_the_extras(tmp_path: Path) -> None:
    script = (
        "seen = {}; exec('from art import *', seen); print(json.dumps(['Trajectory' in seen, 'LocalBackend' in seen]))"
    )

    assert run_fresh(WITHOUT_EXTRAS + script, cwd=tmp_path) == [True, False]


def test_local_backend_without_the_extras_names_the_one_to_install(tmp_path: Path) -> None:
    script = """
import art
try:
    art.LocalBackend
except ImportError as error:
    print(json.dumps(str(error)))
"""

    assert "openpipe-art[backend]" in run_fresh(WITHOUT_EXTRAS + script, cwd=tmp_path)


def test_trainable_model_needs_no_extra(tmp_path: Path) -> None:
    script = """
import art
model = art.TrainableModel(name="n", project="p", base_model="b")
step = asyncio.run(art.Model(name="m", project="p").get_step())
print(json.dumps([model.trainable, model.get_inference_name(), step]))
"""

    assert run_fresh(WITHOUT_EXTRAS + script, cwd=tmp_path) == [True, "n", 0]
