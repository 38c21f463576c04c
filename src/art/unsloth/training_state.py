"""What a trainer needs beside its adapter to go on as if it had never stopped, saved with the newest checkpoint.

That is the optimizer's state (which holds its own step counters), torch's random states, and the kind of training that
the optimizer served last. Learning rates are given with every step, so there is no schedule to save.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch

from art.checkpoint_manifest import OPTIONAL_FILES, TRAINER_STATE_FILE
from art.checkpoints import verify_checkpoint
from art.errors import CheckpointIncompleteError

logger = logging.getLogger(__name__)

TrainingMode = Literal["rl", "sft"]
# Averages of torch's and of bitsandbytes' AdamW.
_LIKE_THE_PARAMETER = ("exp_avg", "exp_avg_sq", "state1", "state2")


@dataclass(frozen=True)
class RandomStates:
    """The states of torch's random generators."""

    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...]

    @classmethod
    def take(cls, device: torch.device) -> RandomStates:
        """Copy the present states; those of GPUs only for a model on one."""
        cuda = tuple(torch.cuda.get_rng_state_all()) if device.type == "cuda" else ()
        return cls(torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Set the generators back to these states."""
        torch.set_rng_state(self.cpu)
        if self.cuda and len(self.cuda) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(list(self.cuda))


def save_training_state(
    checkpoint_dir: Path,
    *,
    optimizer: torch.optim.Optimizer,
    parameter_names: list[str],
    mode: TrainingMode | None,
    device: torch.device,
) -> None:
    """Write `trainer_state.pt` into a checkpoint folder that is still being staged.

    Raises:
        OSError: The file system refused.
    """
    random_states = RandomStates.take(device)
    state = {
        "parameter_names": parameter_names,
        "optimizer_class": type(optimizer).__name__,
        "optimizer": to_cpu(optimizer.state_dict()),
        "mode": mode,
        "cpu_rng": random_states.cpu,
        "cuda_rng": list(random_states.cuda),
    }
    path = checkpoint_dir / TRAINER_STATE_FILE
    try:
        torch.save(state, path)
    except RuntimeError as err:  # a full disk, for one
        raise OSError(f"{path} cannot be written: {err}") from err


def load_training_state(
    checkpoint_dir: Path, *, optimizer: torch.optim.Optimizer, parameter_names: list[str]
) -> TrainingMode | None:
    """Set optimizer and random generators to what a checkpoint holds; where that does not fit, start anew and say so.

    The optimizer's settings, such as its weight decay, stay those of the present configuration.

    Returns:
        The kind of training that the optimizer's state comes from; None where there is no such state.

    Raises:
        CheckpointIncompleteError: Another file of the checkpoint is not the one that was saved.
    """
    path = checkpoint_dir / TRAINER_STATE_FILE
    try:
        verify_checkpoint(checkpoint_dir, digests=True)  # reads every file: a run goes on from it for hours
        if not path.is_file():
            return None
        saved = torch.load(path, map_location="cpu", weights_only=True)
        _restore_optimizer(optimizer, parameter_names, saved)
        if "cpu_rng" in saved:  # older releases saved the optimizer only
            RandomStates(saved["cpu_rng"], tuple(saved["cuda_rng"])).restore()
    except (
        OSError,
        RuntimeError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        EOFError,
        UnpicklingError,
    ) as err:
        if isinstance(err, CheckpointIncompleteError) and not OPTIONAL_FILES.issuperset(err.missing):
            raise
        optimizer.state.clear()  # it may be half there
        logger.warning("optimizer state not restored, starting anew: path=%s cause=%s", path, err)
        return None
    mode = saved.get("mode", "rl")
    return mode if mode in ("rl", "sft") else None


def forget_training_state(optimizer: torch.optim.Optimizer) -> None:
    """Empty an optimizer's state, as for a kind of training that its averages do not belong to."""
    optimizer.state.clear()
    logger.info("optimizer starts anew: the kind of training has changed")


def to_cpu(value: Any) -> Any:
    """Copy a nest of dictionaries, lists and tensors to the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: to_cpu(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_cpu(entry) for entry in value)
    return value


def _restore_optimizer(optimizer: torch.optim.Optimizer, parameter_names: list[str], saved: Mapping[str, Any]) -> None:
    if saved["parameter_names"] != parameter_names:
        raise ValueError("it belongs to other parameters")
    if saved["optimizer_class"] != type(optimizer).__name__:
        raise ValueError(f"it belongs to {saved['optimizer_class']}, not {type(optimizer).__name__}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, averages in saved["optimizer"]["state"].items():
        shapes = {tuple(averages[name].shape) for name in _LIKE_THE_PARAMETER if name in averages}
        if shapes - {tuple(parameters[number].shape)}:
            raise ValueError(
                f"it belongs to weights of other shapes, such as {shapes.pop()} for {parameter_names[number]}"
            )
    hyperparameters = copy.deepcopy(optimizer.state_dict()["param_groups"])
    optimizer.load_state_dict({"state": saved["optimizer"]["state"], "param_groups": hyperparameters})
