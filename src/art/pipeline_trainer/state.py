"""What a pipeline knows about its progress, while it runs and on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from art.errors import DataError
from art.model.state import PIPELINE_STATE_KEY

logger = logging.getLogger(__name__)


@dataclass
class PipelineState:
    """The progress of a running pipeline.

    Attributes:
        policy_version: The step that the server has confirmed; new rollouts are answered by it.
        next_training_step: The step being trained, or the one trained last.
        scenario_offset: Scenarios handed out so far, counted from the iterator's beginning.
        total_scenarios_consumed: The same number, summed over runs that began at the iterator's beginning.
        last_eval_step: The step that was scheduled for evaluation last.
        discarded_stale_groups: Groups that were too old to be trained, in this run.
        completed_eval_steps: Steps whose evaluation has ended.
        policy_updated: Notified when a step begins and when the server has confirmed it.
        done: Whether no further rollouts are started.
    """

    policy_version: int = 0
    next_training_step: int = 0
    scenario_offset: int = 0
    total_scenarios_consumed: int = 0
    last_eval_step: int = 0
    discarded_stale_groups: int = 0
    completed_eval_steps: set[int] = field(default_factory=set)
    policy_updated: asyncio.Condition = field(default_factory=asyncio.Condition)
    done: bool = False


@dataclass(frozen=True)
class SavedProgress:
    """What is kept in the model's `state.json`.

    Attributes:
        scenario_offset: Scenarios handed out so far.
        total_scenarios_consumed: See `PipelineState`.
        training_step: The newest step that was trained.
        last_eval_step: See `PipelineState`.
        completed_eval_steps: See `PipelineState`.
        pending_eval_steps: Steps whose evaluation is scheduled or was running.
        unfinished_offsets: Which of the scenarios handed out were neither trained nor discarded.
        batch_step: The step that a batch is, or was, about to become; None when none is being trained.
        batch_offsets: The scenarios of that batch; they are among the unfinished ones.
    """

    scenario_offset: int = 0
    total_scenarios_consumed: int = 0
    training_step: int = 0
    last_eval_step: int = 0
    completed_eval_steps: tuple[int, ...] = ()
    pending_eval_steps: tuple[int, ...] = ()
    unfinished_offsets: tuple[int, ...] = ()
    batch_step: int | None = None
    batch_offsets: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, stored: Any) -> SavedProgress:
        """Read what `to_json` gave, or what another release stored under the same key.

        Raises:
            DataError: It is neither.
        """
        try:
            return cls._from_json(stored)
        except (AttributeError, TypeError, ValueError) as err:
            raise DataError(
                f"the progress of the pipeline in the model's state.json, under {PIPELINE_STATE_KEY!r}, cannot be read "
                f"({err}); repair it, remove that key, or begin anew with resume=False"
            ) from err

    @classmethod
    def _from_json(cls, stored: Mapping[str, Any]) -> SavedProgress:
        batch = stored.get("batch") or {}
        step = batch.get("step")
        return cls(
            scenario_offset=int(stored.get("scenario_offset") or 0),
            total_scenarios_consumed=int(stored.get("total_scenarios_consumed") or 0),
            training_step=int(stored.get("training_step") or 0),
            last_eval_step=int(stored.get("last_eval_step") or 0),
            completed_eval_steps=_steps(stored.get("completed_eval_steps")),
            pending_eval_steps=_steps(stored.get("pending_eval_steps")),
            unfinished_offsets=_steps(stored.get("unfinished_offsets")),
            batch_step=None if step is None else int(step),
            batch_offsets=_steps(batch.get("offsets")),
        )

    def to_json(self) -> dict[str, Any]:
        """Give the stored form."""
        batch = None if self.batch_step is None else {"step": self.batch_step, "offsets": list(self.batch_offsets)}
        return {
            "scenario_offset": self.scenario_offset,
            "total_scenarios_consumed": self.total_scenarios_consumed,
            "training_step": self.training_step,
            "last_eval_step": self.last_eval_step,
            "completed_eval_steps": list(self.completed_eval_steps),
            "pending_eval_steps": list(self.pending_eval_steps),
            "unfinished_offsets": list(self.unfinished_offsets),
            "batch": batch,
        }

    def settled(self, backend_step: int) -> SavedProgress:
        """Decide by the backend's newest step what became of a batch that was being trained when this was saved."""
        if self.batch_step is None:
            if self.training_step != backend_step:
                logger.warning(
                    "the saved state speaks of step %d, the backend's newest is %d: going on from the backend's",
                    self.training_step,
                    backend_step,
                )
            return replace(self, training_step=backend_step)
        was_trained = backend_step >= self.batch_step
        expected = self.batch_step if was_trained else self.training_step
        if backend_step != expected:
            logger.warning(
                "the saved state speaks of step %d, with step %d being trained; the backend's newest is %d: going on "
                "from the backend's",
                self.training_step,
                self.batch_step,
                backend_step,
            )
        finished = set(self.batch_offsets) if was_trained else set()
        return replace(
            self,
            training_step=backend_step,
            unfinished_offsets=tuple(offset for offset in self.unfinished_offsets if offset not in finished),
            batch_step=None,
            batch_offsets=(),
        )


def _steps(stored: Iterable[Any] | None) -> tuple[int, ...]:
    return tuple(sorted({int(step) for step in stored or ()}))
