"""Groups in batches while further groups are still running: `trajectory_group_batches`."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator

from art.errors import ConfigurationError
from art.gather import check_allowance, count_trajectories, warn_of_total_completion_tokens, wrap_group_awaitable
from art.gather_context import GatherContext, progress_bar, set_gather_context
from art.owned_tasks import cancel_and_wait, close_unstarted
from art.trajectories import TrajectoryGroup

_Task = asyncio.Task[TrajectoryGroup | None]


async def trajectory_group_batches(
    groups: Iterable[Awaitable[TrajectoryGroup]],
    *,
    batch_size: int,
    max_batch_exceptions: int | float = 0,
    max_concurrent_batches: int = 4,
    skip_batches: int = 0,
    pbar_desc: str | None = "batches",
    pbar_total_completion_tokens: bool = False,
) -> AsyncIterator[list[TrajectoryGroup]]:
    """Give groups in batches, in order of completion, while later ones are running.

    Whoever leaves the iteration early should close it (`contextlib.aclosing`): that cancels the running groups and
    waits for their end. Without it this happens when Python collects the generator.

    Args:
        groups: Groups made of awaitables, or coroutines that give a group. Taken as they are needed.
        batch_size: Groups in a batch; the last batch may have fewer.
        max_batch_exceptions: Failed rollouts allowed in each batch: a number, or when below 1 a share of the
            trajectories that the first `batch_size` groups say they have.
        max_concurrent_batches: How many batches' worth of groups run at once.
        skip_batches: Batches to leave out at the start; their groups never run.
        pbar_desc: Text before the progress bar; None shows no bar.
        pbar_total_completion_tokens: Deprecated, without effect.

    Raises:
        ConfigurationError: A size is below 1, or `skip_batches` below 0.
        Exception: The failure that exceeded the allowance, or one of `FATAL_ROLLOUT_ERRORS`.
    """
    warn_of_total_completion_tokens(pbar_total_completion_tokens)
    check_allowance("max_batch_exceptions", max_batch_exceptions)
    if batch_size < 1 or max_concurrent_batches < 1 or skip_batches < 0:
        raise ConfigurationError(
            f"batch_size={batch_size} and max_concurrent_batches={max_concurrent_batches} must be at least 1, "
            f"skip_batches={skip_batches} at least 0"
        )
    remaining = iter(groups)
    close_unstarted(itertools.islice(remaining, batch_size * skip_batches))
    first_batch = list(itertools.islice(remaining, batch_size))
    allowed = max_batch_exceptions
    if 0 < allowed < 1:
        allowed = math.floor(round(allowed * sum(map(count_trajectories, first_batch)), 9))
    with progress_bar(pbar_desc, 0) as bar:
        running = _RunningGroups(
            itertools.chain(first_batch, remaining),
            limit=batch_size * max_concurrent_batches,
            context=GatherContext(pbar=bar, max_exceptions=allowed),
        )
        try:
            batch: list[TrajectoryGroup] = []
            while running.fill():
                group = await running.next_finished()
                if group is not None:
                    batch.append(group)
                if len(batch) == batch_size:
                    running.fill()  # so that rollouts go on while the caller uses the batch
                    yield batch
                    batch = []
                    running.context.reset()
            if batch:
                yield batch
        finally:
            await running.stop()
            if isinstance(groups, Collection):  # an iterator may be endless, and makes nothing that is not asked for
                close_unstarted(groups)


class _RunningGroups:
    """Keeps up to `limit` groups running and hands them out in order of completion."""

    def __init__(self, groups: Iterator[Awaitable[TrajectoryGroup]], *, limit: int, context: GatherContext) -> None:
        self.context = context
        self._groups = groups
        self._limit = limit
        self._started: dict[_Task, Awaitable[TrajectoryGroup]] = {}  # and not yet handed out
        self._running = 0
        self._finished: asyncio.PriorityQueue[tuple[bool, int, _Task]] = asyncio.PriorityQueue()
        self._positions = itertools.count()

    def fill(self) -> bool:
        """Start groups up to the limit; say whether any is running or waits to be handed out."""
        while self._running < self._limit and (group := next(self._groups, None)) is not None:
            if self.context.pbar is not None:
                self.context.pbar.total = (self.context.pbar.total or 0) + count_trajectories(group)
            with set_gather_context(self.context):
                task = asyncio.create_task(wrap_group_awaitable(group))
            self._running += 1
            self._started[task] = group
            task.add_done_callback(self._note_finished)
        return bool(self._started)

    async def next_finished(self) -> TrajectoryGroup | None:
        """Give the next finished group, or None for one that failed within the allowance; failures come first."""
        _, _, task = await self._finished.get()
        del self._started[task]
        return task.result()

    async def stop(self) -> None:
        """Cancel what runs and wait for its end."""
        try:
            await cancel_and_wait(list(self._started))
        finally:
            close_unstarted(self._started.values())

    def _note_finished(self, task: _Task) -> None:
        self._running -= 1
        is_well = not task.cancelled() and task.exception() is None
        self._finished.put_nowait((is_well, next(self._positions), task))
