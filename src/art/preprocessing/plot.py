"""A picture of a packed batch, to look at what is trained and where padding is."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np
import torch

from art.errors import MissingDependencyError
from art.preprocessing.packed_tensors import TOKEN_DTYPES, PackedTensors

logger = logging.getLogger(__name__)


def plot_packed_tensors(packed_tensors: PackedTensors, output_dir: str | Path | None = None) -> None:
    """Write heat maps of a packed batch to `packed_tensors_plot_{unix time}.png`.

    Args:
        packed_tensors: The batch; each tensor gets a map of B rows by S tokens.
        output_dir: The folder, made if absent; None: the current one.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as err:
        raise MissingDependencyError("matplotlib", needed_for="plotting packed tensors", extra="plotting") from err
    figure = Figure(figsize=(14, 2.2 * len(TOKEN_DTYPES)), layout="constrained")
    for axes, key in zip(figure.subplots(len(TOKEN_DTYPES), 1), TOKEN_DTYPES, strict=True):
        values: torch.Tensor = packed_tensors[key]  # type: ignore[literal-required]
        image = axes.imshow(_as_numbers(key, values), aspect="auto", interpolation="nearest")
        axes.set_title(key)
        figure.colorbar(image, ax=axes)
    folder = Path(output_dir or ".")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"packed_tensors_plot_{int(time.time())}.png"
    figure.savefig(path)
    logger.info("packed tensors plotted: path=%s", path)


def _as_numbers(key: str, values: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    numbers = values.cpu().numpy()
    if key in ("group_ids", "parent_ids"):  # 64-bit ids: number them, padding 0
        _, numbers = np.unique(numbers, return_inverse=True)
        numbers = numbers.reshape(values.shape)
    return numbers.astype(np.float64)
