"""The training loop: packed rows in, optimizer steps out, one dictionary of metrics for each."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

import torch

from art.dev.settings import TrainSettings
from art.errors import NonFiniteLossError, NoTrainableTokensError
from art.loss import Loss, loss_fn, unshift_tensor
from art.preprocessing.inputs import TrainInputs, take_row, trim_padding
from art.preprocessing.packed_tensors import TOKEN_DTYPES, PackedTensors
from art.unsloth.language_model import LanguageModel
from art.unsloth.reference_adapter import ReferencePolicy, reference_policy

logger = logging.getLogger(__name__)

# Rows are padded to a multiple of this on a GPU, where every new length costs compilation and allocation.
_GPU_LENGTH_MULTIPLE = 256
# Keeps gradients of half-precision activations above the smallest float16; the weights themselves are float32.
_FLOAT16_LOSS_SCALE = 1024.0


@dataclass(frozen=True)
class _Failure:
    """Why an optimizer step was left out."""

    row: int
    reason: str


@dataclass
class RowTrainer:
    """Trains an adapter on packed rows.

    Attributes:
        model: The model.
        optimizer: Over the adapter's parameters.
        settings: What this call was told.
        max_grad_norm: Limit of the gradient's norm; 0 for none.
        rows_per_step: Packed rows to an optimizer step.
        step: Number of the step that is being trained, for errors.
    """

    model: LanguageModel
    optimizer: torch.optim.Optimizer
    settings: TrainSettings
    max_grad_norm: float
    rows_per_step: int
    step: int | None = None

    def train(self, packed: PackedTensors, *, verbose: bool = False) -> Iterator[dict[str, float]]:
        """Take one optimizer step for each group of rows, in their order.

        A step whose loss or gradient is not finite is left out: its metrics hold no loss. The last dictionary also
        holds `data/step_num_skipped_nonfinite`, the count over the whole call.

        Args:
            packed: The batch.
            verbose: Log every step at info level.

        Raises:
            NoTrainableTokensError: No row has a trainable token.
            NonFiniteLossError: Every step was left out.
            ConfigurationError: The reference adapter cannot be used.
        """
        rows = [row for row in range(len(packed["tokens"])) if bool(packed["assistant_mask"][row, 1:].any())]
        if not rows:
            raise NoTrainableTokensError(f"none of the {len(packed['tokens'])} packed rows has a token to train")
        groups = [rows[start : start + self.rows_per_step] for start in range(0, len(rows), self.rows_per_step)]
        tokens_per_row = float(packed["assistant_mask"][rows, 1:].sum()) / len(rows)
        failures: list[_Failure] = []
        with reference_policy(self.model, self.settings.kl_ref_adapter_path) as reference:
            recomputed = self._recompute_logprobs(packed, rows) if self.settings.precalculate_logprobs else {}
            for index, group in enumerate(groups):
                started = time.perf_counter()
                inputs = [self._inputs(packed, row, recomputed.get(row)) for row in group]
                outcome = self._take_step(group, inputs, tokens_per_row, reference)
                if isinstance(outcome, _Failure):
                    logger.warning("optimizer step left out: row=%d %s", outcome.row, outcome.reason)
                    failures.append(outcome)
                    outcome = {}
                metrics = {"loss/learning_rate": self.settings.learning_rate, **outcome, **_sizes(inputs)}
                metrics["time/gradient_step_s"] = time.perf_counter() - started
                if index == len(groups) - 1:
                    self._raise_if_nothing_was_trained(failures, groups)
                    metrics["data/step_num_skipped_nonfinite"] = float(len(failures))
                logger.log(logging.INFO if verbose else logging.DEBUG, "optimizer step: %s", metrics)
                yield metrics

    def _inputs(self, packed: PackedTensors, row: int, recomputed: torch.Tensor | None) -> TrainInputs:
        """Take a row without its padding to the device; its sampled logprobs become the original ones if recomputed."""
        device = self.model.device
        inputs = dict(trim_padding(take_row(packed, row), _GPU_LENGTH_MULTIPLE if device.type == "cuda" else 1))
        for key in TOKEN_DTYPES:
            inputs[key] = cast(torch.Tensor, inputs[key]).to(device)
        if recomputed is not None:
            inputs["original_logprobs"] = inputs["logprobs"]
            inputs["logprobs"] = recomputed.to(device)
        return cast(TrainInputs, inputs)

    def _recompute_logprobs(self, packed: PackedTensors, rows: list[int]) -> dict[int, torch.Tensor]:
        """Score all rows with the weights of this moment; token-aligned, NaN where nothing is trained."""
        recomputed = {}
        for row in rows:
            inputs = self._inputs(packed, row, None)
            with self.model.evaluating():
                logprobs, _ = self.model.score_row(inputs, self.settings.logprob_calculation_chunk_size)
            by_token = unshift_tensor(logprobs, float("nan"))
            recomputed[row] = by_token.masked_fill(~inputs["assistant_mask"], float("nan")).cpu()
        return recomputed

    def _take_step(
        self, rows: list[int], inputs: list[TrainInputs], tokens_per_row: float, reference: ReferencePolicy
    ) -> dict[str, float] | _Failure:
        parameters = [value for group in self.optimizer.param_groups for value in group["params"]]
        scale = _FLOAT16_LOSS_SCALE if self.model.dtype == torch.float16 else 1.0
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        try:
            for row, row_inputs in zip(rows, inputs, strict=True):
                loss = self._row_loss(row_inputs, reference)
                value = loss.policy_loss
                if loss.reduction == "sum":
                    value = value / tokens_per_row
                if not math.isfinite(value.item()):
                    return _Failure(row, f"its loss is {value.item()}")
                (value * (scale / len(rows))).backward()  # type: ignore[no-untyped-call]
                losses.append(_loss_metrics(loss, value))
            for parameter in parameters:
                if parameter.grad is not None and scale != 1.0:
                    parameter.grad /= scale
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm or math.inf).item()
            if not math.isfinite(norm):
                return _Failure(rows[0], f"the norm of its gradient is {norm}")
            self._set_learning_rate(inputs)
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return {**_mean_by_key(losses), "loss/grad_norm": norm}

    def _row_loss(self, inputs: TrainInputs, reference: ReferencePolicy) -> Loss:
        chunk_tokens = self.settings.logprob_calculation_chunk_size
        ref_logprobs = None
        if self.settings.kl_penalty_coef > 0:
            with self.model.evaluating(), reference():
                ref_logprobs, _ = self.model.score_row(inputs, chunk_tokens)
        new_logprobs, entropies = self.model.score_row(inputs, chunk_tokens)
        reduction: Literal["mean", "sum"] = "sum" if self.settings.batch_token_normalization else "mean"
        return loss_fn(inputs, new_logprobs, ref_logprobs, entropies, self.settings, reduction)

    def _set_learning_rate(self, inputs: list[TrainInputs]) -> None:
        """Multiply the rate by the number of completions in this step, to the power that the settings say."""
        completions = sum(len(torch.unique(row["group_ids"][row["assistant_mask"]])) for row in inputs)
        rate = self.settings.learning_rate * completions**self.settings.num_trajectories_learning_rate_multiplier_power
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _raise_if_nothing_was_trained(self, failures: list[_Failure], groups: list[list[int]]) -> None:
        if len(failures) == len(groups):
            first = failures[0]
            raise NonFiniteLossError(
                f"none of the {len(groups)} optimizer steps of step {self.step} could be taken; row {first.row}: "
                f"{first.reason}. Look at the rewards and logprobs of this batch, and at the learning rate",
                step=self.step,
                row=first.row,
            )


def _loss_metrics(loss: Loss, value: torch.Tensor) -> dict[str, float]:
    found = {
        "loss/train": value,
        "loss/entropy": loss.mean_entropy,
        "loss/kl_policy_ref": loss.kl_policy_ref,
        "loss/probs_corr": loss.probs_corr,
    }
    numbers = {key: tensor.item() for key, tensor in found.items() if tensor is not None}
    return {key: number for key, number in numbers.items() if math.isfinite(number)}


def _mean_by_key(samples: list[dict[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for sample in samples for key in sample)
    values = {key: [sample[key] for sample in samples if key in sample] for key in keys}
    return {key: sum(found) / len(found) for key, found in values.items()}


def _sizes(inputs: list[TrainInputs]) -> dict[str, float]:
    return {
        "data/gradient_step_tokens": float(sum(int((row["group_ids"] != -1).sum()) for row in inputs)),
        "data/gradient_step_trainable_tokens": float(sum(int(row["assistant_mask"].sum()) for row in inputs)),
    }
