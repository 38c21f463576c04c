"""The names and parameters of `art.pipeline_trainer` that scripts rely on."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import art.pipeline_trainer as pipeline
from art.pipeline_trainer import trainer
from art.pipeline_trainer.state import PipelineState
from tests.contract.fresh import run_fresh

REQUIRED = inspect.Parameter.empty
# Those of both releases; where they disagree on a name, both are there.
PARAMETERS: dict[str, Any] = {
    "model": REQUIRED,
    "backend": REQUIRED,
    "rollout_fn": REQUIRED,
    "scenarios": REQUIRED,
    "config": REQUIRED,
    "eval_fn": None,
    "num_rollout_workers": 16,
    "min_batch_size": 4,
    "max_batch_size": None,
    "max_steps_off_policy": 4,
    "queue_maxsize": None,
    "learning_rate": 1e-5,
    "loss_fn": "cispo",
    "loss_fn_config": None,
    "normalize_advantages": True,
    "adam_params": None,
    "packed_sequence_length": None,
    "max_steps": None,
    "discard_queue_multiplier": 100,
    "log_interval_seconds": 60.0,
    "status_ewa_alpha": 0.2,
    "total_scenarios": None,
    "eval_every_n_steps": 20,
    "save_checkpoint": True,
    "checkpoint_retention_strategy": None,
    "checkpoint_retention_interval": 1,
    "resume": True,
}
STATUS_METHODS = {
    "close": [],
    "flush": [],
    "log_if_due": ["force"],
    "note_group_dequeued": ["_group"],
    "note_group_enqueued": ["_group"],
    "note_rollout_finished": ["errored"],
    "note_rollout_started": [],
    "note_stale": ["count"],
    "note_training_batch": ["batch", "step", "step_seconds"],
    "note_training_end": [],
    "note_training_start": ["group_count"],
    "note_val_finished": ["step", "reward"],
    "note_val_started": ["step"],
    "note_zero_variance_discarded": ["count"],
    "set_step": ["step"],
    "start": ["initial_step"],
}


def test_every_public_name_exists() -> None:
    expected = {
        "CHECKPOINT_CREATED_AT_METRIC",
        "CHECKPOINT_EVAL_COMPLETED_METRIC",
        "CHECKPOINT_SAVED_METRIC",
        "CheckpointInfo",
        "CheckpointRetentionContext",
        "CheckpointRetentionStrategy",
        "EvalFn",
        "PipelineTrainer",
        "RolloutFn",
        "ScenarioT",
        "SingleRolloutFn",
        "StatusReporter",
        "keep_recent_and_top",
        "make_group_rollout_fn",
    }
    assert expected <= set(pipeline.__all__)
    assert all(hasattr(pipeline, name) for name in pipeline.__all__)
    assert trainer.make_group_rollout_fn is pipeline.make_group_rollout_fn
    assert trainer.PIPELINE_STATE_KEY == "_pipeline_trainer"


def test_parameters_and_defaults() -> None:
    parameters = inspect.signature(pipeline.PipelineTrainer).parameters
    assert {name: parameters[name].default for name in PARAMETERS} == PARAMETERS
    assert {"eval_step_0", "eval_at_start"} <= set(parameters)
    positional = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert positional == ["model", "backend", "rollout_fn", "scenarios", "config", "eval_fn"]
    assert list(inspect.signature(pipeline.PipelineTrainer.train).parameters) == ["self", "handle_signals"]
    assert list(inspect.signature(pipeline.make_group_rollout_fn).parameters) == ["single_rollout_fn", "n"]


def test_methods_of_the_status() -> None:
    for name, parameters in STATUS_METHODS.items():
        signature = inspect.signature(getattr(pipeline.StatusReporter, name))
        assert list(signature.parameters) == ["self", *parameters]


def test_fields_of_the_state() -> None:
    assert {field.name for field in fields(PipelineState)} == {
        "policy_version",
        "next_training_step",
        "scenario_offset",
        "total_scenarios_consumed",
        "last_eval_step",
        "discarded_stale_groups",
        "completed_eval_steps",
        "policy_updated",
        "done",
    }


def test_the_client_side_is_enough(tmp_path: Path) -> None:
    heavy = {"torch", "transformers", "vllm", "peft", "wandb", "litellm", "polars", "pyarrow"}
    script = f"import json, sys, art.pipeline_trainer; print(json.dumps(sorted({heavy} & set(sys.modules))))"
    assert run_fresh(script, cwd=tmp_path) == []
