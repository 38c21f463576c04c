"""The loop of supervised fine-tuning: batches in, optimizer steps out, one dictionary of metrics for each."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from art.errors import NonFiniteLossError, NoTrainableTokensError
from art.preprocessing.sft import UNTRAINED_LABEL, SFTBatch
from art.preprocessing.sft_store import SFTBatches
from art.unsloth.language_model import LanguageModel

logger = logging.getLogger(__name__)

# Sequences are padded to a multiple of this on a GPU, where every new length costs compilation and allocation.
_GPU_LENGTH_MULTIPLE = 256
_LOGIT_CHUNK_TOKENS = 1024
# Sequences are computed together up to so many tokens, padding included; a longer one is computed alone.
_PASS_TOKENS = 2048
# Keeps gradients of half-precision activations above the smallest float16; the weights themselves are float32.
_FLOAT16_LOSS_SCALE = 1024.0


@dataclass
class SFTTrainer:
    """Trains an adapter on given answers.

    Attributes:
        model: The model.
        optimizer: Over the adapter's parameters.
        weight_decay: Of the optimizer, while this trains.
        max_grad_norm: Limit of the gradient's norm; 0 for none.
        step: Number of the step that is being trained, for errors.
    """

    model: LanguageModel
    optimizer: torch.optim.Optimizer
    weight_decay: float
    max_grad_norm: float
    step: int | None = None

    def train(self, batches: SFTBatches, *, verbose: bool = False) -> Iterator[dict[str, float]]:
        """Take one optimizer step for each batch that has something to train, in their order.

        The loss of a batch is the mean over its trained tokens. A step whose loss or gradient is not finite is left
        out: its metrics hold no loss.

        Args:
            batches: The batches.
            verbose: Log every step at info level.

        Raises:
            NoTrainableTokensError: No batch has a trainable token.
            NonFiniteLossError: Every step was left out.
        """
        num_steps = 0
        failures: list[str] = []
        usual = [group["weight_decay"] for group in self.optimizer.param_groups]
        try:
            for group in self.optimizer.param_groups:
                group["weight_decay"] = self.weight_decay
            for index, batch in enumerate(batches):
                num_trained = sum(_num_trained(tensors["labels"]) for tensors in batch.trajectory_tensors)
                if not num_trained:
                    logger.warning("batch skipped, no token of it is trained: batch=%d", index)
                    continue
                metrics = self._take_step(batch, num_trained)
                num_steps += 1
                if "loss/train" not in metrics:
                    failures.append(f"batch {index}")
                logger.log(logging.INFO if verbose else logging.DEBUG, "optimizer step: %s", metrics)
                yield metrics
        finally:
            for group, decay in zip(self.optimizer.param_groups, usual, strict=True):
                group["weight_decay"] = decay
        if not num_steps:
            raise NoTrainableTokensError(f"none of the {len(batches)} batches has a token to train")
        if len(failures) == num_steps:
            raise NonFiniteLossError(
                f"none of the {num_steps} optimizer steps of step {self.step} could be taken: losses or gradients were "
                "not finite. Look at the learning rate",
                step=self.step,
                row=None,
            )

    def _take_step(self, batch: SFTBatch, num_trained: int) -> dict[str, float]:
        started = time.perf_counter()
        parameters = [value for group in self.optimizer.param_groups for value in group["params"]]
        scale = _FLOAT16_LOSS_SCALE if self.model.dtype == torch.float16 else 1.0
        metrics = {"loss/learning_rate": batch.learning_rate}
        self.optimizer.zero_grad(set_to_none=True)
        try:
            total = 0.0
            for rows in _grouped_by_length(batch.trajectory_tensors):
                loss = self._summed_loss(rows) / num_trained
                total += loss.item()
                (loss * scale).backward()  # type: ignore[no-untyped-call]
            for parameter in parameters:
                if parameter.grad is not None and scale != 1.0:
                    parameter.grad /= scale
            norm = torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm or math.inf).item()
            if math.isfinite(total) and math.isfinite(norm):
                for group in self.optimizer.param_groups:
                    group["lr"] = batch.learning_rate
                self.optimizer.step()
                metrics |= {"loss/train": total, "loss/grad_norm": norm}
            else:
                logger.warning("optimizer step left out: loss=%s norm of the gradient=%s", total, norm)
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return {
            **metrics,
            "data/gradient_step_tokens": float(sum(row["input_ids"].numel() for row in batch.trajectory_tensors)),
            "data/gradient_step_trainable_tokens": float(num_trained),
            "time/gradient_step_s": time.perf_counter() - started,
        }

    def _summed_loss(self, rows: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        """Return the negative log-likelihood of the sequences' trained tokens, summed."""
        device = self.model.device
        length = max(tensors["input_ids"].shape[1] for tensors in rows)
        if device.type == "cuda":
            length += -length % _GPU_LENGTH_MULTIPLE
        tokens = _stack([tensors["input_ids"] for tensors in rows], length, fill=0)
        labels = _stack([tensors["labels"] for tensors in rows], length, fill=UNTRAINED_LABEL)
        is_trained = labels != UNTRAINED_LABEL
        return -self.model.score_tokens(tokens.to(device), is_trained.to(device), _LOGIT_CHUNK_TOKENS).sum()


def _grouped_by_length(rows: list[dict[str, torch.Tensor]]) -> list[list[dict[str, torch.Tensor]]]:
    """Put sequences of similar length together: one pass over many short ones is twice as fast as many passes."""
    groups: list[list[dict[str, torch.Tensor]]] = []
    trained = (tensors for tensors in rows if _num_trained(tensors["labels"]))
    for tensors in sorted(trained, key=lambda tensors: tensors["input_ids"].shape[1], reverse=True):
        length = tensors["input_ids"].shape[1]
        longest = groups[-1][0]["input_ids"].shape[1] if groups else 0
        if groups and 2 * length > longest and longest * (len(groups[-1]) + 1) <= _PASS_TOKENS:
            groups[-1].append(tensors)
        else:
            groups.append([tensors])
    return groups


def _stack(rows: list[torch.Tensor], length: int, fill: int) -> torch.Tensor:
    return torch.cat([torch.nn.functional.pad(row, (0, length - row.shape[1]), value=fill) for row in rows])


def _num_trained(labels: torch.Tensor) -> int:
    return int((labels[:, 1:] != UNTRAINED_LABEL).sum())
