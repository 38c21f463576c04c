"""Walk through a data set in shuffled batches, epoch after epoch, from any step."""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class DatasetBatch(Generic[T]):
    """One step's share of a data set.

    Attributes:
        items: The items, at most `groups_per_step`.
        step: Number of the batch over all epochs, from 0.
        epoch: Number of the epoch, from 0.
        epoch_step: Number of the batch within its epoch, from 0.
    """

    items: list[T]
    step: int
    epoch: int
    epoch_step: int


def iterate_dataset(
    dataset: list[T],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    use_tqdm: bool = True,
) -> Generator[DatasetBatch[T], None, None]:
    """Yield a data set in batches, each epoch in another order that depends on the epoch's number alone.

    Args:
        dataset: What to go through.
        groups_per_step: Items in a batch; an epoch's last batch may be shorter.
        num_epochs: How often to go through all of it.
        initial_step: Steps below this one are skipped, so that a resumed run goes on where it was.
        use_tqdm: Show a progress bar.
    """
    steps_per_epoch = math.ceil(len(dataset) / groups_per_step)
    total_steps = steps_per_epoch * num_epochs
    progress_bar = None
    if use_tqdm:
        from tqdm.auto import tqdm

        progress_bar = tqdm(initial=initial_step, total=total_steps, desc="Iterating dataset", unit="batch")
    try:
        for epoch in range(initial_step // steps_per_epoch if steps_per_epoch else 0, num_epochs):
            order = list(range(len(dataset)))
            random.Random(epoch).shuffle(order)
            for epoch_step in range(steps_per_epoch):
                step = epoch * steps_per_epoch + epoch_step
                if step < initial_step:
                    continue
                start = epoch_step * groups_per_step
                items = [dataset[index] for index in order[start : start + groups_per_step]]
                yield DatasetBatch(items=items, step=step, epoch=epoch, epoch_step=epoch_step)
                if progress_bar is not None:
                    progress_bar.update()
    finally:
        if progress_bar is not None:
            progress_bar.close()
