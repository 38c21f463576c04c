"""Supervised fine-tuning from a list or a file: learning-rate schedules, shuffled chunks, files too large to hold."""

from __future__ import annotations

import json
import logging
import math
import random
from array import array
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import pydantic

from art.errors import ConfigurationError, DataError, TokenizationError
from art.trajectories import Trajectory
from art.types import TrainSFTConfig

if TYPE_CHECKING:
    from art import dev
    from art.model import TrainableModel

__all__ = [
    "SFTChunk",
    "create_lr_schedule",
    "create_sft_dataset_iterator",
    "get_file_row_count",
    "iterate_file",
    "train_sft_from_file",
]

logger = logging.getLogger(__name__)

ScheduleType: TypeAlias = Literal["cosine", "linear", "constant"]
_SUFFIX = ".jsonl"


class SFTChunk(NamedTuple):
    """What one call of `model.train_sft` takes of a data set.

    Attributes:
        trajectories: Those of all its batches, in order.
        config: The batch size, and the learning rate of each batch.
        step: Number of its first batch over all epochs, from 0.
        epoch: Number of the epoch, from 0.
        epoch_step: Number of its first batch within the epoch, from 0.
    """

    trajectories: list[Trajectory]
    config: TrainSFTConfig
    step: int
    epoch: int
    epoch_step: int


def create_lr_schedule(
    total_steps: int,
    peak_lr: float,
    method: ScheduleType = "linear",
    warmup_steps: int = 0,
    min_lr: float = 0.0,
) -> list[float]:
    """Return the learning rate of each step.

    Warm-up rises from one share above `min_lr` to `peak_lr`; after it, "linear" and "cosine" fall from the peak to
    `min_lr`, which the very last step gets.

    Args:
        total_steps: Length of the result; nothing below 1 gives an empty one.
        peak_lr: The highest rate.
        method: How the rate falls after warm-up.
        warmup_steps: Steps of warm-up.
        min_lr: The lowest rate.

    Raises:
        ConfigurationError: The method is unknown, or there are fewer than 0 steps of warm-up.
    """
    if method not in get_args(ScheduleType):
        raise ConfigurationError(f"schedule {method!r} is unknown; use one of {', '.join(get_args(ScheduleType))}")
    _require_at_least(0, "warmup_steps", warmup_steps)
    last_decay_step = total_steps - warmup_steps - 1
    span = peak_lr - min_lr

    def rate(step: int) -> float:
        if step < warmup_steps:
            return min_lr + span * (step + 1) / warmup_steps
        progress = (step - warmup_steps) / last_decay_step if last_decay_step > 0 else 0.0
        if method == "cosine":
            return min_lr + span * 0.5 * (1 + math.cos(math.pi * progress))
        return peak_lr - span * progress if method == "linear" else peak_lr

    return [rate(step) for step in range(total_steps)]


def create_sft_dataset_iterator(
    trajectories: list[Trajectory],
    chunk_size: int = 10,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: ScheduleType = "linear",
    warmup_ratio: float = 0.1,
    shuffle: bool = True,
    seed: int = 42,
    initial_step: int = 0,
    show_progress: bool = True,
) -> Generator[SFTChunk, None, None]:
    """Cut a data set into chunks for `model.train_sft`, epoch after epoch, under one learning-rate schedule.

    The order of an epoch depends on `seed` and the epoch's number alone, so a run that is resumed with the number of
    the next batch goes on exactly there.

    Args:
        trajectories: The data set.
        chunk_size: Batches in a chunk; the first one after resuming and an epoch's last one may have fewer.
        epochs: How often to go through the data set.
        batch_size: Trajectories in a batch; an epoch's last one may have fewer.
        peak_lr: The highest learning rate.
        schedule_type: How the rate falls after warm-up.
        warmup_ratio: Share of all batches that is warm-up.
        shuffle: Take each epoch in another order.
        seed: Decides the orders.
        initial_step: Batches below this one are skipped, counted over all epochs.
        show_progress: Show a progress bar.

    Raises:
        ConfigurationError: A number is out of range, or the schedule is unknown.
    """
    for name, size in (("chunk_size", chunk_size), ("batch_size", batch_size)):
        _require_at_least(1, name, size)
    _require_at_least(0, "initial_step", initial_step)
    _require_share("warmup_ratio", warmup_ratio)
    batches = math.ceil(len(trajectories) / batch_size)
    total = batches * epochs
    rates = create_lr_schedule(total, peak_lr, schedule_type, int(total * warmup_ratio))
    bar = None
    if show_progress and total:
        from tqdm.auto import tqdm

        bar = tqdm(initial=initial_step, total=total, desc="SFT", unit="batch")
    try:
        for epoch in range(initial_step // batches if batches else 0, epochs if batches else 0):
            order = list(range(len(trajectories)))
            if shuffle:
                random.Random(seed + epoch).shuffle(order)
            for start in range(0, batches, chunk_size):
                end = min(start + chunk_size, batches)
                first = max(start, initial_step - epoch * batches)
                if first >= end:
                    continue
                step = epoch * batches + first
                yield SFTChunk(
                    [trajectories[index] for index in order[first * batch_size : end * batch_size]],
                    TrainSFTConfig(learning_rate=rates[step : step + end - first], batch_size=batch_size),
                    step,
                    epoch,
                    first,
                )
                if bar is not None:
                    bar.update(end - first)
    finally:
        if bar is not None:
            bar.close()


def get_file_row_count(file_path: str) -> int:
    """Count the rows of a `.jsonl` file; empty lines do not count.

    Raises:
        DataError: The file's name ends otherwise.
    """
    with _checked_path(file_path).open("rb") as file:
        return sum(1 for line in file if line.strip())


def iterate_file(
    file_path: str,
    epochs: int = 1,
    shuffle_buffer_size: int = 10000,
    seed: int = 42,
    initial_skip: int = 0,
) -> Generator[Trajectory, None, None]:
    """Stream a `.jsonl` file of conversations, shuffled within a buffer.

    Each row is `{"messages": […]}`, with `"tools": […]` if there are any. The order of an epoch depends on `seed`, the
    buffer's size and the epoch's number alone.

    Args:
        file_path: The file.
        epochs: How often to go through it.
        shuffle_buffer_size: Rows that are held in memory to draw from.
        seed: Decides the orders.
        initial_skip: Rows to leave out at the beginning, counted over all epochs.

    Raises:
        DataError: The file's name ends otherwise, or a row is broken; names the line.
    """
    for _, trajectory in _numbered_rows(file_path, epochs, shuffle_buffer_size, seed, initial_skip):
        yield trajectory


async def train_sft_from_file(
    model: TrainableModel[Any, Any],
    file_path: str,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: ScheduleType = "linear",
    warmup_ratio: float = 0.1,
    initial_step: int = 0,
    final_step: int | None = None,
    _config: dev.TrainSFTConfig | None = None,
    verbose: bool = False,
    shuffle_buffer_size: int = 10000,
) -> None:
    """Train one step on a `.jsonl` file, without ever holding all of it in memory.

    Args:
        model: A registered model.
        file_path: See `iterate_file`.
        epochs: How often to go through the file; the last batch of an epoch may reach into the next one.
        batch_size: Trajectories in a batch.
        peak_lr: The highest learning rate.
        schedule_type: How the rate falls after warm-up.
        warmup_ratio: Share of all batches that is warm-up.
        initial_step: Train from this batch on, so that a file may be trained in several calls.
        final_step: Train up to this batch, without it; None: to the end.
        _config: Further settings of the call.
        verbose: Log every batch.
        shuffle_buffer_size: See `iterate_file`.

    Raises:
        ConfigurationError: A number is out of range, or the schedule is unknown.
        DataError: A row is broken, or there is nothing to train; names the line. Nothing was trained.
    """
    _require_at_least(1, "batch_size", batch_size)
    _require_share("warmup_ratio", warmup_ratio)
    total = math.ceil(get_file_row_count(file_path) * epochs / batch_size)
    if not 0 <= initial_step <= total or (final_step is not None and not initial_step <= final_step):
        raise ConfigurationError(
            f"batches {initial_step} to {'the end' if final_step is None else final_step} cannot be trained: "
            f"{file_path} gives batches 0 to {total - 1}"
        )
    rates = create_lr_schedule(total, peak_lr, schedule_type, int(total * warmup_ratio))[initial_step:final_step]
    lines = array("q")
    rows = _numbered_rows(file_path, epochs, shuffle_buffer_size, skip=initial_step * batch_size)

    def trajectories() -> Iterator[Trajectory]:
        for line, trajectory in islice(rows, len(rates) * batch_size):
            lines.append(line)
            yield trajectory

    try:
        await model.train_sft(
            trajectories(), TrainSFTConfig(learning_rate=rates, batch_size=batch_size), _config, verbose
        )
    except TokenizationError as err:
        if err.trajectory_index is None:
            raise
        raise TokenizationError(
            f"{file_path}:{lines[err.trajectory_index]}: {err.message}",
            trajectory_index=err.trajectory_index,
            message_index=err.message_index,
        ) from err


def _numbered_rows(
    file_path: str, epochs: int, buffer_size: int, seed: int = 42, skip: int = 0
) -> Iterator[tuple[int, Trajectory]]:
    """Give rows with their line numbers; those that are skipped are not parsed."""
    path = _checked_path(file_path)
    shuffled = (
        row for epoch in range(epochs) for row in _shuffled_lines(path, buffer_size, random.Random(seed + epoch))
    )
    for number, line in islice(shuffled, skip, None):
        yield number, _parse_row(line, f"{path}:{number}")


def _shuffled_lines(path: Path, buffer_size: int, rng: random.Random) -> Iterator[tuple[int, bytes]]:
    buffer: list[tuple[int, bytes]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            buffer.append((number, line))
            if len(buffer) >= buffer_size:
                yield buffer.pop(rng.randint(0, len(buffer) - 1))
    rng.shuffle(buffer)
    yield from buffer


def _parse_row(line: bytes, where: str) -> Trajectory:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as err:
        raise DataError(f"{where}: not JSON: {err}") from err
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not messages:
        raise DataError(f'{where}: expected {{"messages": […]}} with at least one message')
    try:
        return Trajectory(messages_and_choices=messages, tools=row.get("tools"), reward=0.0)
    except pydantic.ValidationError as err:
        raise DataError(f"{where}: {err.errors()[0]['msg'].removeprefix('Value error, ')}") from err


def _checked_path(file_path: str) -> Path:
    path = Path(file_path)
    if path.suffix != _SUFFIX:
        raise DataError(f"{file_path} is not a {_SUFFIX} file: one conversation in JSON on each line is expected")
    return path


def _require_at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ConfigurationError(f"{name} is {value}; it must be at least {least}")


def _require_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigurationError(f"{name} is {value}; it must be from 0 to 1")
