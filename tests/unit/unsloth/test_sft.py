"""Supervised fine-tuning takes the very steps that plain transformers and PEFT would take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from art.checkpoints import stage_checkpoint
from art.dev.settings import TrainSettings
from art.errors import NonFiniteLossError, NoTrainableTokensError
from art.preprocessing.disk import packed_tensors_to_dir
from art.preprocessing.sft import SFTBatch
from art.unsloth.sft import _grouped_by_length
from art.unsloth.trainer import LoraTrainer
from tests.support.packed_rows import Completion, Group, make_batch, pack_row
from tests.unit.unsloth.conftest import MakeTrainer

LEARNING_RATES = [1e-2, 3e-3]


def batch_of(rows: Sequence[tuple[list[int], list[int]]], learning_rate: float = 1e-2) -> SFTBatch:
    """Make a batch of sequences, each given as what is context and what is trained after it."""
    tensors = []
    for context, answer in rows:
        ids = torch.tensor([[*context, *answer]])
        labels = torch.tensor([[-100] * len(context) + answer])
        tensors.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return SFTBatch(tensors, learning_rate, len(rows), sum(len(answer) for _, answer in rows))


# Sequences of unequal length, so that a mean over sequences differs from the mean over tokens.
BATCHES = [
    batch_of([([9, 300], [41]), ([5, 17, 200, 31], [60, 61, 7, 8, 9]), ([4, 5, 6, 7], [8, 9])], LEARNING_RATES[0]),
    batch_of([([3, 250, 4], [99, 12])], LEARNING_RATES[1]),
]
UNTRAINABLE = batch_of([([5, 17, 200], [])])


def weights_of(trainer: LoraTrainer) -> dict[str, torch.Tensor]:
    parameters = trainer._require_loaded().model.adapter_parameters()
    return {name: value.detach().clone() for name, value in parameters.items()}


def plain_steps(base: Path, adapter: Path, *, weight_decay: float, max_norm: float) -> tuple[list[Any], Any]:
    """Train the same batches with transformers' own loss, one optimizer step each."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter, is_trainable=True
    )
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), betas=(0.9, 0.99), weight_decay=weight_decay)
    metrics = []
    for batch, rate in zip(BATCHES, LEARNING_RATES, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        loss = sum(
            model(**row, num_items_in_batch=torch.tensor(batch.num_trainable_tokens)).loss
            for row in batch.trajectory_tensors
        )
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        metrics.append((loss.item(), norm.item(), rate))
    return metrics, parameters


@pytest.mark.parametrize(
    ("sft_args", "weight_decay", "max_norm"),
    [({}, 0.01, 1.0), ({"weight_decay": 0.5, "max_grad_norm": 0.02}, 0.5, 0.02)],
)
def test_steps_equal_those_of_plain_transformers(
    make_trainer: MakeTrainer,
    tiny_qwen3: Path,
    tmp_path: Path,
    sft_args: dict[str, float],
    weight_decay: float,
    max_norm: float,
) -> None:
    trainer = make_trainer()
    trainer._sft_args |= sft_args
    with stage_checkpoint(tmp_path / "model", 0) as staging:
        trainer.save(staging)

    metrics = list(trainer.train_sft(BATCHES))

    adapter = tmp_path / "model" / "checkpoints" / "0000"
    expected, parameters = plain_steps(tiny_qwen3, adapter, weight_decay=weight_decay, max_norm=max_norm)
    found = [tuple(row[f"loss/{key}"] for key in ("train", "grad_norm", "learning_rate")) for row in metrics]
    assert found == [pytest.approx(values, rel=1e-4) for values in expected]
    assert expected[0][1] > 0.02  # so that the second case clips
    trained = weights_of(trainer)
    assert len(trained) == len(parameters)
    for (name, weight), plain in zip(trained.items(), parameters.values(), strict=True):
        # Adam's first steps have the size of the rate whatever the gradient, noise of tiny ones included.
        torch.testing.assert_close(weight, plain.detach(), atol=2e-4, rtol=0, msg=name)


def test_answers_become_likelier_and_context_is_not_learnt(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    (context, answer) = [5, 17, 200, 31], [60, 61, 7]

    def logprob() -> float:
        return float(trainer._require_loaded().model.score_sequence([*context, *answer])[len(context) - 1 :].sum())

    before = logprob()
    metrics = [entry for _ in range(4) for entry in trainer.train_sft([batch_of([(context, answer)])])]
    assert logprob() > before + 1
    assert metrics[0]["loss/train"] == pytest.approx(-before / 3, abs=1e-4)
    assert [entry["data/gradient_step_trainable_tokens"] for entry in metrics] == [3.0] * 4


def test_batches_without_trained_tokens_are_left_out(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer()
    metrics = list(trainer.train_sft([UNTRAINABLE, *BATCHES, UNTRAINABLE]))
    assert [entry["loss/learning_rate"] for entry in metrics] == LEARNING_RATES
    assert "batch skipped, no token of it is trained: batch=3" in caplog.text


def test_nothing_to_train_is_refused_and_changes_nothing(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    before = weights_of(trainer)
    with pytest.raises(NoTrainableTokensError, match="none of the 2 batches"):
        list(trainer.train_sft([UNTRAINABLE, UNTRAINABLE]))
    torch.testing.assert_close(weights_of(trainer), before, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("lengths", "passes"),
    [
        ([3, 900, 500, 700], [[900, 700], [500], [3]]),  # 900 and 700 make 1,800 tokens with padding, 500 is too many
        ([100] * 25, [[100] * 20, [100] * 5]),
        ([3000, 2500], [[3000], [2500]]),
        ([100, 50, 51], [[100, 51], [50]]),
    ],
)
def test_short_sequences_share_a_pass(lengths: list[int], passes: list[list[int]]) -> None:
    rows = batch_of([([1], [2] * (length - 1)) for length in lengths]).trajectory_tensors
    groups = _grouped_by_length([*rows, *UNTRAINABLE.trajectory_tensors])
    assert [[tensors["input_ids"].shape[1] for tensors in group] for group in groups] == passes


def test_a_step_that_is_not_finite_is_left_out(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    model = trainer._require_loaded().model
    score = type(model).score_tokens
    calls: list[Any] = []

    def poisoned(self: Any, *args: Any) -> torch.Tensor:
        calls.append(args)
        return score(self, *args) * (math.nan if len(calls) == 1 else 1.0)

    monkeypatch.setattr(type(model), "score_tokens", poisoned)
    metrics = list(trainer.train_sft(BATCHES))
    assert ["loss/train" in entry for entry in metrics] == [False, True]
    calls.clear()
    before = weights_of(trainer)
    with pytest.raises(NonFiniteLossError, match="none of the 1 optimizer steps"):
        list(trainer.train_sft(BATCHES[:1]))
    torch.testing.assert_close(weights_of(trainer), before, atol=0, rtol=0)


def test_fine_tuning_and_reinforcement_learning_take_turns(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    """Each kind has its own weight decay, and its optimizer does not go on with the averages of the other."""
    trainer = make_trainer(trainer_args={"weight_decay": 0.1})
    optimizer = trainer._require_loaded().optimizer
    row = pack_row([Group([5, 17, 200], [Completion([60, 61], 1.0), Completion([99, 12], -1.0)])])
    packed = packed_tensors_to_dir(make_batch([row]), tmp_path / "tensors")

    def steps_of_optimizer() -> set[float]:
        return {float(state["step"]) for state in optimizer.state.values()}

    list(trainer.train_sft(BATCHES))
    assert steps_of_optimizer() == {2.0}
    list(trainer.train(packed, TrainSettings()))
    assert steps_of_optimizer() == {1.0}
    list(trainer.train_sft(BATCHES[1:]))
    assert steps_of_optimizer() == {1.0}
    list(trainer.train_sft(BATCHES[1:]))
    assert steps_of_optimizer() == {2.0}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1}
