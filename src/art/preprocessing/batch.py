"""From the trajectory groups of a step to the packed batch on disk, or to the reason why there is nothing to train."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from art.conversation import is_choice
from art.dev.settings import ToolSchemaFormat, TrainSettings
from art.errors import TokenizationError
from art.preprocessing.advantages import group_advantages
from art.preprocessing.disk import DiskPackedTensors, packed_tensors_to_dir
from art.preprocessing.pack import fill_rows
from art.preprocessing.packed_tensors import PackedTensors
from art.preprocessing.plot import plot_packed_tensors
from art.preprocessing.row_plan import Row, plan_rows
from art.preprocessing.tokenize import TokenizedResult, tokenize_trajectory_groups
from art.preprocessing.tokenizer_protocol import Tokenizer
from art.trajectories import TrajectoryGroup

logger = logging.getLogger(__name__)

ROW_TOKENS_STEP = 2048  # the limit of a row's length is a multiple of this
ROW_TOKENS_GRANULARITY = 64  # a row is not padded beyond the next multiple of this


@dataclass(frozen=True)
class TrainingBatch:
    """What a step trains on.

    Attributes:
        disk_packed_tensors: The packed batch; None if there is nothing to train.
        skip_reason: Why there is nothing to train, in words for the user; None if there is something.
        metrics: `data/step_*` of this batch.
    """

    disk_packed_tensors: DiskPackedTensors | None
    skip_reason: str | None
    metrics: dict[str, float]


def build_training_batch(
    groups: Sequence[TrajectoryGroup],
    *,
    tokenizer: Tokenizer,
    image_processor: Any,
    tensors_dir: Path,
    max_sequence_tokens: int,
    settings: TrainSettings,
    chat_template_kwargs: Mapping[str, object] | None,
    rng: random.Random,
    tool_schema_format: ToolSchemaFormat = "vllm_openai",
    vocabulary_tokens: int | None = None,
) -> TrainingBatch:
    """Compute advantages, tokenize, pack and write a batch. Blocks: seconds for large batches.

    Args:
        groups: The groups of the step.
        tokenizer: The base model's, with the chat template that served the rollouts.
        image_processor: The base model's, or None.
        tensors_dir: Gets the files; the picture of `plot_tensors` goes beside it.
        max_sequence_tokens: Longest token sequence that the trainer takes; longer trajectories are dropped.
        settings: Of the step.
        chat_template_kwargs: Variables for the chat template, the same as at inference.
        rng: Draws ids and orders.
        tool_schema_format: Shape of tools in the template; by default that of vLLM's server.
        vocabulary_tokens: How many token ids the trainer's model knows; None: they are not checked.

    Raises:
        TokenizationError: A trajectory cannot be tokenized, or holds tokens that the model does not know.
    """
    metrics = _group_metrics(groups)
    if not metrics["data/step_num_groups_trainable"]:
        return _skipped(metrics, _why_no_group_is_trainable(groups))
    results = list(
        tokenize_trajectory_groups(
            tokenizer,
            groups,
            settings.allow_training_without_logprobs,
            settings.scale_rewards,
            image_processor=image_processor,
            chat_template_kwargs=chat_template_kwargs,
            chat_template_tool_schema_format=tool_schema_format,
            rng=rng,
        )
    )
    if vocabulary_tokens is not None:
        _refuse_unknown_tokens(groups, results, vocabulary_tokens)
    if not settings.allow_training_without_logprobs:
        results = [result for result in results if not np.isnan(result.logprobs).all()]
    metrics["data/step_num_trajectories_dropped_untrainable"] = float(_count_untrainable(groups, results))
    if not results:
        return _skipped(metrics, _why_nothing_was_sampled(groups))
    limit = _row_limit(results, max_sequence_tokens, settings.packed_sequence_length)
    results, num_dropped = _drop_overlong(results, limit)
    metrics["data/step_num_trajectories_dropped_overlong"] = float(num_dropped)
    rows = plan_rows(results, limit, "first", rng)
    if not rows:
        return _skipped(metrics, f"all {num_dropped} trainable trajectories are longer than {limit} tokens")
    row_tokens = _row_tokens(rows, limit, settings.packed_sequence_length)
    tensors = fill_rows(
        rows,
        row_tokens,
        pad_token_id=tokenizer.eos_token_id or 0,
        advantage_balance=settings.advantage_balance,
        rng=rng,
    )
    if not tensors["advantages"].isfinite().all():
        return _skipped(metrics, f"advantage_balance={settings.advantage_balance} takes away every advantage there is")
    metrics |= _packing_metrics(tensors, rows)
    if settings.plot_tensors:
        plot_packed_tensors(tensors, tensors_dir.parent)
    return TrainingBatch(packed_tensors_to_dir(tensors, tensors_dir), None, metrics)


def _group_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    rewards = [[trajectory.reward for trajectory in group.trajectories] for group in groups]
    unusable = [reward for group in rewards for reward in group if not math.isfinite(reward)]
    if unusable:
        logger.warning("dropped %d trajectories whose reward is not a finite number: %s", len(unusable), unusable[:5])
    return {
        "data/step_num_groups_submitted": float(len(groups)),
        "data/step_num_groups_trainable": float(sum(bool(group_advantages(group).any()) for group in rewards)),
        "data/step_num_trajectories_dropped_nonfinite_reward": float(len(unusable)),
        "data/step_num_trajectories_dropped_untrainable": 0.0,
        "data/step_num_trajectories_dropped_overlong": 0.0,
        "data/step_trainer_tokens": 0.0,
    }


def _skipped(metrics: dict[str, float], reason: str) -> TrainingBatch:
    logger.warning("nothing to train in this step: %s", reason)
    return TrainingBatch(None, reason, {**metrics, "data/step_num_groups_trainable": 0.0})


def _why_no_group_is_trainable(groups: Sequence[TrajectoryGroup]) -> str:
    if not groups:
        return "there are no groups"
    sizes = [len(group.trajectories) for group in groups]
    if not any(sizes):
        failures = [failure for group in groups for failure in group.exceptions]
        first = f"; the first: {failures[0].type}: {failures[0].message}" if failures else ""
        return f"all {len(groups)} groups are without a trajectory, {len(failures)} rollouts failed{first}"
    if max(sizes) == 1:
        return "no group has more than one trajectory, so there is nothing to compare a reward with"
    if not any(math.isfinite(trajectory.reward) for group in groups for trajectory in group.trajectories):
        return "no reward is a finite number"
    return f"in each of the {len(groups)} groups all rewards are equal"


def _why_nothing_was_sampled(groups: Sequence[TrajectoryGroup]) -> str:
    group_index = next(index for index, group in enumerate(groups) if group.trajectories)
    trajectory = groups[group_index].trajectories[0]
    num_choices = sum(is_choice(entry) for entry in trajectory.messages_and_choices)
    has = f"{num_choices} Choices, all without logprobs" if num_choices else "no Choice, only plain messages"
    return (
        f"no trajectory holds a Choice with logprobs; trajectory 0 of group {group_index}, for one, has {has}. Put "
        f"`response.choices[0]` into messages_and_choices (not its message), sampled with logprobs=True, "
        f"or set allow_training_without_logprobs"
    )


def _refuse_unknown_tokens(
    groups: Sequence[TrajectoryGroup], results: Sequence[TokenizedResult], vocabulary_tokens: int
) -> None:
    """Refuse ids that the model has no embedding for: on a GPU, looking one up breaks the whole process."""
    for result in results:
        highest = max(result.token_ids)
        if highest < vocabulary_tokens:
            continue
        group_index, index = next(
            (group_index, index)
            for group_index, group in enumerate(groups)
            for index, trajectory in enumerate(group.trajectories)
            if trajectory is result.trajectory
        )
        raise TokenizationError(
            f"trajectory {index} of group {group_index} holds token {highest}, but the base model knows only "
            f"{vocabulary_tokens} tokens, numbered from 0: its answers were sampled from another model",
            trajectory_index=index,
        )


def _count_untrainable(groups: Sequence[TrajectoryGroup], results: Sequence[TokenizedResult]) -> int:
    """Count trajectories whose reward tells something, but which hold nothing to train."""
    trained = {id(result.trajectory) for result in results}
    missing = [
        f"trajectory {index} of group {group_index}"
        for group_index, group in enumerate(groups)
        for index, advantage in enumerate(group_advantages([trajectory.reward for trajectory in group.trajectories]))
        if advantage and id(group.trajectories[index]) not in trained
    ]
    if missing:
        logger.warning("dropped %d trajectories without a Choice that has logprobs, first %s", len(missing), missing[0])
    return len(missing)


def _row_limit(results: Sequence[TokenizedResult], max_sequence_tokens: int, packed_sequence_length: int | None) -> int:
    longest = max(len(result.token_ids) for result in results)
    limit = packed_sequence_length or math.ceil(longest / ROW_TOKENS_STEP) * ROW_TOKENS_STEP
    return min(limit, max_sequence_tokens)


def _drop_overlong(results: Sequence[TokenizedResult], limit: int) -> tuple[list[TokenizedResult], int]:
    """Leave out sequences longer than a row; count the trajectories that they belong to."""
    kept = [result for result in results if len(result.token_ids) <= limit]
    overlong = [result for result in results if len(result.token_ids) > limit]
    num_trajectories = len({id(result.trajectory) for result in overlong})
    if overlong:
        logger.warning(
            "dropped %d sequences of %d trajectories that are longer than %d tokens (the longest has %d); raise "
            "max_seq_length to train on them",
            len(overlong),
            num_trajectories,
            limit,
            max(len(result.token_ids) for result in overlong),
        )
    return kept, num_trajectories


def _row_tokens(rows: Sequence[Row], limit: int, packed_sequence_length: int | None) -> int:
    if packed_sequence_length:
        return limit
    needed = max(row.num_tokens for row in rows)
    return min(math.ceil(needed / ROW_TOKENS_GRANULARITY) * ROW_TOKENS_GRANULARITY, limit)


def _packing_metrics(tensors: PackedTensors, rows: Sequence[Row]) -> dict[str, float]:
    num_sequences = sum(len(row.segments) for row in rows)
    num_unpacked = sum(len(segment.result.token_ids) for row in rows for segment in row.segments)
    num_used = sum(row.num_tokens for row in rows)
    num_rows, row_tokens = tensors["tokens"].shape
    num_trained = int(tensors["assistant_mask"].sum())
    logger.info(
        "packed %d sequences of %d tokens into %d rows of %d: %.0f%% used, %.1f tokens stand for each used one, "
        "%d trained",
        num_sequences,
        num_unpacked,
        num_rows,
        row_tokens,
        100 * num_used / (num_rows * row_tokens),
        num_unpacked / num_used,
        num_trained,
    )
    return {
        "data/step_trainer_tokens": float(num_trained),
        "data/step_num_packed_sequences": float(num_sequences),
        "data/step_num_packed_rows": float(num_rows),
        "data/packing_utilization": num_used / (num_rows * row_tokens),
        "data/packing_ratio": num_unpacked / num_used,
    }
