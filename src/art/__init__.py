"""Train LLM agents with reinforcement learning on your own GPUs.

Every public name is here, but each is loaded on first use: `import art` is cheap and needs only the base install.
`LocalBackend` needs the extra `backend` (or `cpu`); it is part of `__all__` where that is installed.

Importing has two effects, which scripts rely on: a `.env` file in or above the working directory is read into the
environment (variables that are set already win), and a warning that litellm causes in pydantic is silenced.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

from art._version import __version__ as __version__

if TYPE_CHECKING:
    from art import backend as backend
    from art import batches as batches
    from art import dev
    from art import gather as gather
    from art import model as model
    from art import trajectories as trajectories
    from art import types as types
    from art import utils as utils
    from art.auto_trajectory import auto_trajectory, capture_auto_trajectory
    from art.backend import Backend
    from art.batches import trajectory_group_batches
    from art.gather import gather_trajectories, gather_trajectory_groups
    from art.local import LocalBackend as LocalBackend
    from art.model import Model, TrainableModel
    from art.retries import retry
    from art.serverless import ServerlessBackend
    from art.trajectories import Trajectory, TrajectoryGroup
    from art.types import (
        LocalTrainResult,
        Messages,
        MessagesAndChoices,
        ServerlessTrainResult,
        Tools,
        TrainConfig,
        TrainResult,
        TrainSFTConfig,
    )
    from art.yield_trajectory import capture_yielded_trajectory, yield_trajectory

__all__ = [
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
]

_HOME_OF = {
    "Backend": "art.backend",
    "LocalBackend": "art.local",
    "LocalTrainResult": "art.types",
    "Messages": "art.types",
    "MessagesAndChoices": "art.types",
    "Model": "art.model",
    "ServerlessBackend": "art.serverless",
    "ServerlessTrainResult": "art.types",
    "Tools": "art.types",
    "TrainConfig": "art.types",
    "TrainResult": "art.types",
    "TrainSFTConfig": "art.types",
    "TrainableModel": "art.model",
    "Trajectory": "art.trajectories",
    "TrajectoryGroup": "art.trajectories",
    "auto_trajectory": "art.auto_trajectory",
    "capture_auto_trajectory": "art.auto_trajectory",
    "capture_yielded_trajectory": "art.yield_trajectory",
    "gather_trajectories": "art.gather",
    "gather_trajectory_groups": "art.gather",
    "retry": "art.retries",
    "trajectory_group_batches": "art.batches",
    "yield_trajectory": "art.yield_trajectory",
}
# Modules that scripts reach as attributes after a plain `import art`.
_MODULES = {"backend", "batches", "dev", "gather", "model", "trajectories", "types", "utils"}
# Functions whose module has the same name.
_SHADOWED_BY_MODULE = {"auto_trajectory", "yield_trajectory"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"art.{name}")
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'art' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


class _Package(ModuleType):
    """This module's class: keeps the names in `_SHADOWED_BY_MODULE` bound to the functions.

    The import system binds every loaded submodule to its name in the package.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SHADOWED_BY_MODULE and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:
        return False


def _read_dotenv() -> None:
    try:
        working_dir = os.getcwd()
    except FileNotFoundError:  # it was removed under us
        return
    parent = os.path.dirname(working_dir)
    while not os.path.isfile(os.path.join(working_dir, ".env")):
        if parent == working_dir:
            return
        working_dir, parent = parent, os.path.dirname(parent)
    from dotenv import load_dotenv

    load_dotenv(os.path.join(working_dir, ".env"))


def _silence_serializer_warnings() -> None:
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning, module="pydantic")


sys.modules[__name__].__class__ = _Package
if not _is_installed("torch"):
    __all__.remove("LocalBackend")
_read_dotenv()
if os.environ.get("SUPPRESS_LITELLM_SERIALIZATION_WARNINGS", "1") == "1":
    _silence_serializer_warnings()
