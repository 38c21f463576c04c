"""The loss against numbers observed elsewhere (`tests/golden/loss.json`) and against hand arithmetic."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from art.dev.settings import TrainSettings
from art.dev.train import resolve_train_settings
from art.errors import ConfigurationError
from art.loss import Loss, loss_fn, shift_tensor, unshift_tensor
from art.types import TrainConfig

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "loss.json").read_text())


def tensor(values: list[list[float | None]]) -> torch.Tensor:
    return torch.tensor([[math.nan if value is None else value for value in row] for row in values])


def golden_inputs(**changes: Any) -> Any:
    raw = GOLDEN["inputs"]
    inputs = {key: tensor(raw[key]) for key in ("logprobs", "advantages", "weights")}
    inputs |= {key: torch.tensor(raw[key]) for key in ("tokens", "group_ids", "parent_ids")}
    return {**inputs, "assistant_mask": torch.tensor(raw["assistant_mask"]).bool(), **changes}


def golden_loss(config: Any, inputs: Any = None, **arguments: Any) -> Loss:
    return loss_fn(inputs or golden_inputs(), tensor(GOLDEN["new_logprobs"]), None, None, config, **arguments)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: json.dumps(case["config"]))
def test_golden_losses_and_gradients(case: dict[str, Any]) -> None:
    inputs = golden_inputs()
    if case["use_original_logprobs"]:
        inputs["original_logprobs"] = tensor(GOLDEN["original_logprobs"])
    new_logprobs = tensor(GOLDEN["new_logprobs"]).requires_grad_()
    ref_logprobs = tensor(GOLDEN["ref_logprobs"]) if case["use_ref"] else None
    # The reference caps the ratio of all tokens, and reads entropies one position too late.
    config = {**case["config"], "legacy_negative_advantage_cap": True}
    late_entropies = shift_tensor(tensor(GOLDEN["entropies"]), 0.0)

    loss = loss_fn(inputs, new_logprobs, ref_logprobs, late_entropies, config)  # type: ignore[arg-type]
    loss.mean_policy_loss.backward()

    found = {
        "mean_policy_loss": loss.mean_policy_loss.item(),
        "policy_loss_sum": loss.policy_loss_sum.item(),
        "mean_entropy": loss.mean_entropy.item() if loss.mean_entropy is not None else None,
        "probs_corr": loss.probs_corr.item(),
        "kl_policy_ref": None if loss.kl_policy_ref is None else loss.kl_policy_ref.item(),
    }
    expected = {key: case[key] for key in found}
    assert found == pytest.approx(expected, abs=2e-6)
    assert new_logprobs.grad is not None
    torch.testing.assert_close(new_logprobs.grad, tensor(case["grad_new_logprobs"]), atol=2e-6, rtol=0)


def test_entropy_is_read_at_the_position_that_predicts() -> None:
    entropies = tensor(GOLDEN["entropies"])
    loss = loss_fn(golden_inputs(), tensor(GOLDEN["new_logprobs"]), None, entropies, {})
    # Positions 1 to 5 predict tokens 2 to 6: (0.2 + 0.3 + 0.4) * 0.8 + (0.5 + 0.6) * 1.3 = 2.15, over 5 tokens.
    assert loss.entropy is not None
    assert loss.entropy.item() == pytest.approx(0.43, abs=1e-6)


def test_ratio_cap_leaves_positive_advantages_alone() -> None:
    uncapped = golden_loss({}).mean_policy_loss.item()
    # No negative token has a ratio above 1.05, two positive ones have.
    capped = golden_loss({"max_negative_advantage_importance_sampling_weight": 1.05}).mean_policy_loss.item()
    assert capped == pytest.approx(uncapped, abs=1e-7)
    # Token 6 (advantage -0.8, weight 1.3, logprob -0.4, ratio 1) is cut to 0.9: its loss goes from -0.416 to -0.3744.
    cut = golden_loss({"max_negative_advantage_importance_sampling_weight": 0.9}).mean_policy_loss.item()
    assert cut - uncapped == pytest.approx(0.0416 / 5, abs=1e-6)


@pytest.mark.parametrize("first_id", [2**62, -(2**62), 2**24])
def test_neighbouring_64_bit_ids_are_different_sequences(first_id: int) -> None:
    inputs: Any = {
        "logprobs": tensor([[None, -1.0, -1.0, None, -1.0, -1.0]]),
        "advantages": tensor([[0.0, 1.0, 1.0, 0.0, 1.0, 1.0]]),
        "weights": torch.ones(1, 6),
        "assistant_mask": torch.tensor([[False, True, True, False, True, True]]),
        "group_ids": torch.tensor([[first_id] * 3 + [first_id + 1] * 3]),
    }
    new_logprobs = tensor([[-0.9, -0.7, 0.0, -1.2, -1.4, 0.0]])
    loss = loss_fn(inputs, new_logprobs, None, None, {"importance_sampling_level": "sequence"})
    # Mean log ratios +0.2 and -0.3: -(e^0.2 * (-1.6) + e^-0.3 * (-2.6)) / 4
    assert loss.mean_policy_loss.item() == pytest.approx((math.exp(0.2) * 1.6 + math.exp(-0.3) * 2.6) / 4, abs=1e-5)


def test_untrained_positions_cannot_spoil_the_gradient() -> None:
    options: Any = {"importance_sampling_level": "average", "ppo": True}
    inputs = golden_inputs()
    new_logprobs = tensor(GOLDEN["new_logprobs"])
    expected = loss_fn(inputs, new_logprobs, None, None, options)
    inputs["logprobs"] = inputs["logprobs"].clone()
    inputs["logprobs"][0, 1] = -1000.0  # sampled, but not trained
    new_logprobs[0, 6:] = torch.tensor([500.0, -500.0])
    new_logprobs.requires_grad_()
    loss = loss_fn(inputs, new_logprobs, None, None, options)
    loss.mean_policy_loss.backward()
    assert loss.mean_policy_loss.item() == pytest.approx(expected.mean_policy_loss.item(), abs=1e-6)
    assert new_logprobs.grad is not None
    assert torch.isfinite(new_logprobs.grad).all()
    assert new_logprobs.grad[0, [0, 6, 7]].abs().sum() == 0


def test_nothing_trained_is_a_loss_of_zero() -> None:
    inputs = golden_inputs(assistant_mask=torch.zeros(1, 8, dtype=torch.bool), logprobs=torch.full((1, 8), math.nan))
    loss = golden_loss({}, inputs)
    assert loss.mean_policy_loss.item() == 0
    assert math.isnan(loss.probs_corr.item())


def test_rows_of_one_call_share_their_denominator() -> None:
    one = golden_inputs()
    two = {key: torch.cat([value, value]) for key, value in one.items()}
    two["assistant_mask"][1, 3:] = False  # the second row keeps token 2 alone
    new_logprobs = tensor(GOLDEN["new_logprobs"])
    first = loss_fn(one, new_logprobs, None, None, {}).policy_loss_sum.item()
    both = loss_fn(two, torch.cat([new_logprobs, new_logprobs]), None, None, {}, reduction="sum")  # type: ignore[arg-type]
    # Token 2: ratio e^0.3, advantage 1.5, logprob -0.7, weight 0.8.
    assert both.policy_loss.item() == pytest.approx(first + math.exp(0.3) * 1.5 * 0.7 * 0.8, abs=1e-5)
    assert both.mean_policy_loss.item() == pytest.approx(both.policy_loss.item() / 6, abs=1e-6)


def test_penalty_of_the_public_configuration_counts() -> None:
    reference = tensor(GOLDEN["ref_logprobs"])
    new_logprobs = tensor(GOLDEN["new_logprobs"])
    inputs = golden_inputs(config=TrainConfig(kl_penalty_coef=0.1))
    assert loss_fn(inputs, new_logprobs, reference, None, {}).mean_policy_loss.item() == pytest.approx(
        0.032907, abs=2e-6
    )
    overridden = loss_fn(inputs, new_logprobs, reference, None, {"kl_penalty_coef": 0.0})
    assert overridden.kl_policy_ref is None


def test_complete_settings_do_what_their_options_do() -> None:
    options: Any = {"ppo": True, "importance_sampling_level": "average", "truncated_importance_sampling": 0.9}
    settings = resolve_train_settings(TrainConfig(), options)
    assert isinstance(settings, TrainSettings)
    expected = golden_loss(options).mean_policy_loss.item()
    assert golden_loss(settings).mean_policy_loss.item() == expected
    assert expected != golden_loss({}).mean_policy_loss.item()


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="epsilon"):
        golden_loss({"epsilom": 0.2})


def test_shifting_to_predictions_and_back() -> None:
    by_token = torch.tensor([[1, 2, 3]])
    assert shift_tensor(by_token, 9).tolist() == [[2, 3, 9]]
    assert unshift_tensor(shift_tensor(by_token, 9), 1).tolist() == [[1, 2, 3]]
    assert shift_tensor(torch.tensor([[True, True]]), False).tolist() == [[True, False]]
