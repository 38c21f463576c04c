from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from art.errors import IncompatibleDependencyError
from art.unsloth.self_check import check_model
from tests.support.lora_models import load_model

TOKENS = [54, 280, 266, 80, 85, 89, 262, 223, 70]


@pytest.fixture
def model(tiny_qwen3: Path) -> Any:
    return load_model(tiny_qwen3, peft_args={"lora_dropout": 0.3})


def test_a_sound_model_passes_and_keeps_its_mode(model: Any) -> None:
    for training in (True, False):
        model.peft_model.train(training)
        check_model(model, TOKENS)
        dropouts = [module for module in model.peft_model.modules() if isinstance(module, torch.nn.Dropout)]
        assert dropouts
        assert all(module.training is training for module in dropouts)


@pytest.mark.parametrize(
    "change",
    [
        # As the fast forward of a library does that takes any mask for padding, in training mode only.
        lambda self, given: {**given, "attention_mask": None} if self.training else given,
        lambda self, given: {**given, "position_ids": None},
    ],
    ids=["mask dropped", "positions dropped"],
)
def test_a_forward_pass_that_ignores_what_it_is_told_is_found_out(
    model: Any, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = type(model.backbone).forward
    monkeypatch.setattr(type(model.backbone), "forward", lambda self, **given: forward(self, **change(self, given)))
    with pytest.raises(IncompatibleDependencyError, match="keeps packed completions apart"):
        check_model(model, TOKENS)
    assert model.peft_model.training


def test_a_head_that_does_something_else_is_found_out(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = type(model.causal_lm).forward

    def scaled(self: Any, **given: Any) -> Any:
        output = forward(self, **given)
        output.logits = output.logits * 1.5
        return output

    monkeypatch.setattr(type(model.causal_lm), "forward", scaled)
    with pytest.raises(IncompatibleDependencyError, match="output head"):
        check_model(model, TOKENS)
