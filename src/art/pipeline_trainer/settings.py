"""What a pipeline was told, checked and complete."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from art.errors import ConfigurationError
from art.pipeline_trainer.checkpoint_retention import CheckpointRetentionStrategy

DEFAULT_BATCH_FACTOR = 10
MIN_FAILED_GROUPS = 10


@dataclass(frozen=True)
class TrainOptions:
    """What is handed to `backend.train` with every batch."""

    learning_rate: float
    loss_fn: str
    loss_fn_config: dict[str, Any] | None
    normalize_advantages: bool
    adam_params: object | None
    packed_sequence_length: int | None

    @classmethod
    def of(cls, trainer: object) -> Self:
        """Read it off a trainer, whose attributes have the same names."""
        return cls(**{field.name: getattr(trainer, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class PipelineSettings:
    """The numbers that steer a pipeline; `art.pipeline_trainer.PipelineTrainer` explains them.

    Raises:
        ConfigurationError: One is out of its range, or two contradict each other.
    """

    num_rollout_workers: int
    min_batch_size: int
    max_batch_size: int
    max_steps_off_policy: int
    queue_maxsize: int
    max_steps: int | None
    discard_queue_multiplier: int
    log_interval_seconds: float
    eval_every_n_steps: int
    eval_step_0: bool
    eval_at_start: bool
    save_checkpoint: bool
    checkpoint_retention_strategy: CheckpointRetentionStrategy | None
    checkpoint_retention_interval: int
    resume: bool
    stall_timeout_s: float | None
    rollout_timeout_s: float | None
    max_failed_groups: int
    max_scenario_attempts: int

    def __post_init__(self) -> None:
        for name in (
            "num_rollout_workers",
            "min_batch_size",
            "max_batch_size",
            "queue_maxsize",
            "discard_queue_multiplier",
            "log_interval_seconds",
            "checkpoint_retention_interval",
            "stall_timeout_s",
            "rollout_timeout_s",
            "max_failed_groups",
            "max_scenario_attempts",
        ):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{name}={value!r} must be greater than 0")
        for name in ("max_steps_off_policy", "eval_every_n_steps", "max_steps"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigurationError(f"{name}={value!r} must not be negative")
        if self.max_batch_size < self.min_batch_size:
            raise ConfigurationError(
                f"max_batch_size={self.max_batch_size} is less than min_batch_size={self.min_batch_size}"
            )

    @classmethod
    def of(cls, trainer: object) -> Self:
        """Read them off a trainer, whose attributes have the same names."""
        return cls(**{field.name: getattr(trainer, field.name) for field in fields(cls)})

    @property
    def collapse_limit(self) -> int:
        """How many groups without variance may be put aside before a step must have been trained."""
        return self.discard_queue_multiplier * self.min_batch_size


def resolve_start_evaluation(eval_step_0: bool | None, eval_at_start: bool | None) -> tuple[bool, bool]:
    """Say whether step 0 is evaluated, and whether any other step is that a run starts from.

    Raises:
        ConfigurationError: Both spellings are given and disagree.
    """
    if eval_step_0 is not None and eval_at_start is not None and eval_step_0 != eval_at_start:
        raise ConfigurationError(
            f"eval_step_0={eval_step_0} contradicts eval_at_start={eval_at_start}: give one of them"
        )
    if eval_at_start is not None:
        return eval_at_start, eval_at_start
    return eval_step_0 is not False, False
