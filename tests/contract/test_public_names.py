"""The names and parameters that scripts rely on."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import art
from tests.contract.fresh import run_fresh

PUBLIC = {
    "Backend",
    "LocalBackend",
    "LocalTrainResult",
    "Messages",
    "MessagesAndChoices",
    "Model",
    "ServerlessBackend",
    "ServerlessTrainResult",
    "Tools",
    "TrainConfig",
    "TrainResult",
    "TrainSFTConfig",
    "TrainableModel",
    "Trajectory",
    "TrajectoryGroup",
    "auto_trajectory",
    "capture_auto_trajectory",
    "capture_yielded_trajectory",
    "dev",
    "gather_trajectories",
    "gather_trajectory_groups",
    "retry",
    "trajectory_group_batches",
    "yield_trajectory",
}
MODULES = ["backend", "batches", "dev", "gather", "model", "trajectories", "types", "utils"]
REQUIRED = inspect.Parameter.empty
PARAMETERS: dict[str, dict[str, Any]] = {
    "gather_trajectories": {
        "trajectories": REQUIRED,
        "pbar_desc": "gather",
        "pbar_total_completion_tokens": False,
        "max_exceptions": 0,
    },
    "gather_trajectory_groups": {
        "groups": REQUIRED,
        "pbar_desc": "gather",
        "pbar_total_completion_tokens": False,
        "max_exceptions": 0,
        "max_metrics": None,
        "after_each": None,
    },
    "trajectory_group_batches": {
        "groups": REQUIRED,
        "batch_size": REQUIRED,
        "max_batch_exceptions": 0,
        "max_concurrent_batches": 4,
        "skip_batches": 0,
        "pbar_desc": "batches",
        "pbar_total_completion_tokens": False,
    },
    "retry": {
        "max_attempts": 3,
        "delay": 0.25,
        "backoff_factor": 2.0,
        "exceptions": (Exception,),
        "on_retry": None,
    },
    "auto_trajectory": {"required": False},
    "yield_trajectory": {"trajectory": REQUIRED},
    "ServerlessBackend": {"api_key": None, "base_url": None},
}


def test_all_lists_the_public_names() -> None:
    assert set(art.__all__) == PUBLIC
    assert len(art.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_name_exists_and_is_listed_by_dir(name: str) -> None:
    assert getattr(art, name) is not None
    assert name in dir(art)


def test_star_import_binds_every_public_name(tmp_path: Path) -> None:
    script = "import json; seen = {}; exec('from art import *', seen); print(json.dumps(sorted(seen)))"

    assert set(run_fresh(script, cwd=tmp_path)) >= PUBLIC


def test_modules_are_attributes_after_a_plain_import(tmp_path: Path) -> None:
    script = f"import art, json; print(json.dumps([getattr(art, name).__name__ for name in {MODULES}]))"

    assert run_fresh(script, cwd=tmp_path) == [f"art.{name}" for name in MODULES]


@pytest.mark.parametrize("name", ["auto_trajectory", "yield_trajectory"])
def test_function_is_not_hidden_by_its_module(name: str) -> None:
    importlib.import_module(f"art.{name}")

    assert not isinstance(getattr(art, name), ModuleType)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameters_and_defaults_are_kept(name: str) -> None:
    parameters = inspect.signature(getattr(art, name)).parameters

    assert {key: parameter.default for key, parameter in parameters.items()} == PARAMETERS[name]


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = art.no_such_name


def test_version_equals_that_of_the_changelog() -> None:
    changelog = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()

    assert f"\n## [{art.__version__}]" in changelog
