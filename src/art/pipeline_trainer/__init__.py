"""Asynchronous training: rollouts, training and evaluations run at the same time."""

from __future__ import annotations

from art.pipeline_trainer.checkpoint_retention import (
    CHECKPOINT_CREATED_AT_METRIC,
    CHECKPOINT_EVAL_COMPLETED_METRIC,
    CHECKPOINT_SAVED_METRIC,
    CheckpointInfo,
    CheckpointRetentionContext,
    CheckpointRetentionStrategy,
    keep_recent_and_top,
)
from art.pipeline_trainer.state import PipelineState
from art.pipeline_trainer.status import StatusReporter
from art.pipeline_trainer.trainer import PipelineTrainer, make_group_rollout_fn
from art.pipeline_trainer.types import EvalFn, RolloutFn, ScenarioT, SingleRolloutFn

__all__ = [
    "CHECKPOINT_CREATED_AT_METRIC",
    "CHECKPOINT_EVAL_COMPLETED_METRIC",
    "CHECKPOINT_SAVED_METRIC",
    "CheckpointInfo",
    "CheckpointRetentionContext",
    "CheckpointRetentionStrategy",
    "EvalFn",
    "PipelineState",
    "PipelineTrainer",
    "RolloutFn",
    "ScenarioT",
    "SingleRolloutFn",
    "StatusReporter",
    "keep_recent_and_top",
    "make_group_rollout_fn",
]
