"""What reaches W&B when it is configured, read from its offline mode; when it is not, nothing of it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.fresh import run_fresh
from tests.support.wandb_files import read_offline_runs

SECRETS = {"WANDB_API_KEY": "a1b2c3d4" * 5, "OPENROUTER_API_KEY": "sk-openrouter-1"}
INFERENCE_KEY = "sk-inference-1"

TWO_MODELS = f"""
import asyncio, json, logging, os, sys, time, warnings
warnings.simplefilter("ignore")
logging.basicConfig(level=logging.DEBUG, filename="script.log")
import art
from art.utils import record_provenance
def make(name):
    return art.Model(
        name=name, project="mail", base_path=".", inference_api_key="{INFERENCE_KEY}",
        inference_base_url="http://127.0.0.1:8123/v1",
    )
def trajectory(reward):
    return art.Trajectory(messages_and_choices=[{{"role": "user", "content": "q"}}], reward=reward)
async def main():
    first, second = make("first"), make("second")
    first.update_wandb_config({{"lr": 0.5}})
    await first.log([art.TrajectoryGroup([trajectory(0.0), trajectory(1.0)])], split="train", step=1)
    first.update_wandb_config({{"seed": 3}})
    await second.log(metrics={{"x": 2.0, "endless": float("inf")}}, step=7)
    await first.log(metrics={{"costs/judge": 0.25}}, split="val", step=0)
    run = first._get_wandb_run()
    began = time.monotonic()
    record_provenance(run, "local-rl")
    assert time.monotonic() - began < 1.0
    if "finish" in sys.argv:
        run.finish()
        while time.monotonic() < began + 1.0:
            pass  # its folders are named by the second
        await first.log(metrics={{"later": 1.0}}, step=2)
asyncio.run(main())
print(json.dumps("wandb" in sys.modules))
"""

CONSTANTS = """
import asyncio, json, warnings
warnings.simplefilter("ignore")
import art
from art.utils.benchmarking.log_constant_metrics_wandb import log_constant_metrics_wandb
model = art.Model(name="gpt", project="mail", base_path=".")
asyncio.run(model.log(metrics={"x": 2.0}, step=0))
split_metrics = {"val": {"right": 0.5}, "test": {"right": 0.25}}
asyncio.run(log_constant_metrics_wandb(model, 2, split_metrics, logged_run_name="Base line"))
print("true")
"""


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    folders = {
        name: str(tmp_path / "wb") for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    }
    (tmp_path / "wb").mkdir()
    return {"WANDB_MODE": "offline", "WANDB_SILENT": "true", **folders, **SECRETS}


def test_each_model_has_its_own_run(tmp_path: Path, offline: dict[str, str]) -> None:
    assert run_fresh(TWO_MODELS, cwd=tmp_path, env=offline) is True
    runs = read_offline_runs(tmp_path / "wb")
    assert {(run.name, run.run_id, run.project) for run in runs.values()} == {
        ("first", "first", "mail"),
        ("second", "second", "mail"),
    }
    first, second = runs["first"], runs["second"]
    assert first.config == {"lr": 0.5, "seed": 3}
    trained, evaluated = first.rows
    assert (trained["train/reward"], trained["train/reward_std_dev"], trained["training_step"]) == (0.5, 0.5, 1)
    assert (evaluated["costs/judge"], evaluated["costs/cum/all"], evaluated["training_step"]) == (0.25, 0.25, 0)
    (row,) = second.rows
    assert (row["val/x"], row["training_step"]) == (2.0, 7)
    assert "val/endless" not in row
    assert first.step_metrics["train/*"] == first.step_metrics["costs/judge"] == "training_step"
    assert_no_secret_below(tmp_path)


def test_run_that_was_finished_is_opened_again(tmp_path: Path, offline: dict[str, str]) -> None:
    run_fresh(TWO_MODELS.replace('"finish" in sys.argv', "True"), cwd=tmp_path, env=offline)
    runs = read_offline_runs(tmp_path / "wb")
    assert [row.get("val/later") for row in runs["first"].rows] == [None, None, 1.0]
    assert len(runs["second"].rows) == 1
    assert_no_secret_below(tmp_path)


def test_constant_metrics_are_a_run_of_their_own(tmp_path: Path, offline: dict[str, str]) -> None:
    run_fresh(CONSTANTS, cwd=tmp_path, env=offline)
    runs = read_offline_runs(tmp_path / "wb")
    assert set(runs) == {"gpt", "Base line"}
    row = {"val/right": 0.5, "test/right": 0.25}
    assert runs["Base line"].rows == [{**row, "training_step": step} for step in range(3)]
    assert len(runs["gpt"].rows) == 1


def test_nothing_of_wandb_is_loaded_without_a_key(tmp_path: Path) -> None:
    script = TWO_MODELS.replace('record_provenance(run, "local-rl")', "assert run is None")
    assert run_fresh(script, cwd=tmp_path, env={"WANDB_API_KEY": ""}) is False
    assert not (tmp_path / "wandb").exists()
    assert_no_secret_below(tmp_path)


def assert_no_secret_below(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.name == "history.jsonl" for path in files)
    for path in files:
        content = path.read_bytes()
        for secret in (*SECRETS.values(), INFERENCE_KEY):
            assert secret.encode() not in content, f"{secret} is in {path}"
