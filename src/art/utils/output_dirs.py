"""Names of the folders that a run writes. Path arithmetic only: nothing is created or read."""

from __future__ import annotations

from typing import Protocol

from art.utils.get_repo_root_path import get_repo_root_path


class NamedModel(Protocol):
    """What is asked of a model here."""

    name: str
    project: str


def get_default_art_path() -> str:
    """Give the folder used when no `path` is configured: `.art` at the repository's root, or where the process runs."""
    return f"{get_repo_root_path()}/.art"


def get_models_dir(project_name: str, art_path: str | None = None) -> str:
    """Give the folder that holds a project's models."""
    return f"{art_path if art_path is not None else get_default_art_path()}/{project_name}/models"


def get_output_dir_from_model_properties(project: str, name: str, art_path: str | None = None) -> str:
    """Give the folder of the model with this project and name."""
    return f"{get_models_dir(project, art_path)}/{name}"


def get_model_dir(model: NamedModel, art_path: str | None = None) -> str:
    """Give the folder of this model."""
    return get_output_dir_from_model_properties(model.project, model.name, art_path)


def get_step_checkpoint_dir(model_output_dir: str, step: int) -> str:
    """Give the folder of one step's checkpoint, its number padded to four digits."""
    return f"{model_output_dir}/checkpoints/{step:04d}"


def get_trajectories_dir(model_output_dir: str) -> str:
    """Give the folder that holds all splits' trajectories."""
    return f"{model_output_dir}/trajectories"


def get_trajectories_split_dir(model_output_dir: str, split: str) -> str:
    """Give the folder that holds one split's trajectories."""
    return f"{get_trajectories_dir(model_output_dir)}/{split}"
