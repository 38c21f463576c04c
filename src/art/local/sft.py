"""A call of supervised fine-tuning: tokenize part by part, refuse what cannot be trained, then train one step."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Sized
from itertools import islice
from pathlib import Path

from art.dev.settings import SFTSettings
from art.dev.train import rates_of_batches
from art.errors import DataError
from art.local.hosting import HostedService, ended_when_cancelled
from art.preprocessing.plain_copies import plain_trajectories
from art.preprocessing.sft_store import StoredPart, StoredSFTBatches, make_store, part_size
from art.trajectories import Trajectory

logger = logging.getLogger(__name__)


async def train_sft(
    hosted: HostedService,
    trajectories: Iterable[Trajectory],
    settings: SFTSettings,
    tensors_dir: Path,
    *,
    verbose: bool = False,
) -> AsyncIterator[dict[str, float]]:
    """Train one step on given answers and serve it; yield the metrics of each optimizer step.

    Everything is tokenized and checked before anything is trained, but never held in memory at once. Without
    trajectories there is no step.

    Args:
        hosted: The model's service.
        trajectories: The conversations, in the order in which they are cut into batches.
        settings: Of the call.
        tensors_dir: Where the batches are kept for as long as the call takes.
        verbose: Log every optimizer step.

    Raises:
        ConfigurationError: There are fewer learning rates than batches.
        TokenizationError: A trajectory is broken; names it.
        NoTrainableTokensError: No trajectory has a token to train.
        TrainingError: Training failed; the step served before serves on.
        InferenceError: The step is saved but could not be served.
    """
    rates = None
    if isinstance(trajectories, Sized):
        rates = rates_of_batches(settings, -(-len(trajectories) // settings.batch_size))
    store = await asyncio.to_thread(make_store, tensors_dir)
    try:
        parts = await _tokenize(hosted, trajectories, settings.batch_size, store)
        if rates is None:
            rates = rates_of_batches(settings, sum(part.num_batches for part in parts))
        batches = StoredSFTBatches(parts, rates)
        if not len(batches):
            logger.warning("no trajectories to train on: no step is made")
            return
        batches.require_trainable()
        counts = batches.metrics()
        async with ended_when_cancelled(hosted.actor):
            results = [metrics async for metrics in hosted.actor.train_sft(batches, verbose=verbose)]
    finally:
        await asyncio.to_thread(shutil.rmtree, store, ignore_errors=True)
    counts["data/step_num_gradient_steps"] = float(len(results))
    counts["data/step_num_skipped_nonfinite"] = float(sum("loss/train" not in metrics for metrics in results))
    for metrics in results:
        yield counts | metrics


async def _tokenize(
    hosted: HostedService, trajectories: Iterable[Trajectory], batch_size: int, store: Path
) -> list[StoredPart]:
    rows = iter(trajectories)
    size = part_size(batch_size)
    parts: list[StoredPart] = []
    first_index = 0
    while part := await asyncio.to_thread(_take, rows, size, first_index):
        parts.append(await hosted.actor.prepare_sft(part, store, first_index=first_index, batch_size=batch_size))
        first_index += len(part)
    return parts


def _take(rows: Iterator[Trajectory], size: int, first_index: int) -> list[Trajectory]:
    """Take copies of the next rows, in a thread, since a file may be read and parsed for them."""
    part = list(islice(rows, size))
    for index, row in enumerate(part, start=first_index):
        if not isinstance(row, Trajectory):
            raise DataError(f"trajectory {index} is a {type(row).__name__}: train_sft takes Trajectories")
    return plain_trajectories(part)
