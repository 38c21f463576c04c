"""Sort finished groups into those that can be trained and those that cannot, and collect a batch."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from art.pipeline_trainer.facts import FinishedGroup, initial_version, is_without_variance
from art.pipeline_trainer.run import PipelineRun
from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

MAX_LOGGED_DISCARDS = 50


@dataclass
class Batch:
    """What is trained at once.

    Attributes:
        finished: The groups.
        is_last: Whether no further groups will come.
    """

    finished: list[FinishedGroup] = field(default_factory=list)
    is_last: bool = False

    @property
    def groups(self) -> list[TrajectoryGroup]:
        """The groups themselves."""
        return [finished.group for finished in self.finished]

    @property
    def offsets(self) -> tuple[int, ...]:
        """The scenarios that they are of."""
        return tuple(sorted(finished.offset for finished in self.finished))


class Batcher:
    """Takes groups from the queue.

    Attributes:
        collapsed: Whether so many groups had no variance that training is of no use.
        zero_variance_groups: How many had none, in this run.
        stale_groups: How many were too old, in this run.
    """

    def __init__(self, run: PipelineRun) -> None:
        self.collapsed = False
        self.zero_variance_groups = 0
        self.stale_groups = 0
        self._run = run
        self._since_last_step = 0
        self._put_aside: list[TrajectoryGroup] = []

    async def collect(self) -> Batch:
        """Wait for as many groups as a batch must have, and take what else is there, up to the most it may have."""
        run, settings = self._run, self._run.settings
        batch = Batch()
        while len(batch.finished) < settings.max_batch_size and not self.collapsed:
            is_enough = len(batch.finished) >= settings.min_batch_size
            run.activity.enter(
                "training", f"waiting for groups: {len(batch.finished)} of at least {settings.min_batch_size}"
            )
            finished = run.queue.get_nowait() if is_enough else await run.queue.get()
            if finished is None:
                batch.is_last = not is_enough
                break
            run.status.note_group_dequeued(finished.group)
            if self._is_usable(finished):
                batch.finished.append(finished)
        batch.is_last |= self.collapsed
        return batch

    def take_discards(self) -> list[TrajectoryGroup]:
        """Give the groups without variance since the last call, at most as many as are worth logging."""
        put_aside, self._put_aside = self._put_aside, []
        self._since_last_step = 0
        return put_aside

    def _is_usable(self, finished: FinishedGroup) -> bool:
        run, group = self._run, finished.group
        version = initial_version(group)
        if version is not None and version < run.state.policy_version - run.settings.max_steps_off_policy:
            self.stale_groups += 1
            run.state.discarded_stale_groups += 1
            run.status.note_stale(1)
            run.source.finish([finished.offset])
            return False
        if not is_without_variance(group):
            return True
        self._put_aside_group(finished)
        return False

    def _put_aside_group(self, finished: FinishedGroup) -> None:
        run = self._run
        self.zero_variance_groups += 1
        self._since_last_step += 1
        if len(self._put_aside) < MAX_LOGGED_DISCARDS:
            self._put_aside.append(finished.group)
        run.status.note_zero_variance_discarded(1)
        run.source.finish([finished.offset])
        if self._since_last_step >= run.settings.collapse_limit:
            self.collapsed = True
            logger.warning(
                "collapse: the rewards within each of %d groups were equal since step %d, so there is nothing to learn "
                "from; training ends (limit: discard_queue_multiplier * min_batch_size)",
                self._since_last_step,
                run.state.policy_version,
            )
