from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from art.unsloth.logprobs import OutputHead, scatter_predictions, token_logprobs, wanted_predictions


class CountingHead(torch.nn.Linear):
    """An output embedding that remembers how many rows it was asked for at once."""

    def __init__(self, hidden: int, vocabulary: int, *, bias: bool = False) -> None:
        super().__init__(hidden, vocabulary, bias=bias)
        self.asked: list[int] = []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(hidden))
        return super().forward(hidden)


def test_logprobs_by_hand() -> None:
    head = OutputHead(torch.nn.Linear(1, 3, bias=False))
    with torch.no_grad():
        head.module.weight.copy_(torch.tensor([[0.0], [math.log(2)], [math.log(5)]]))
    logprobs, entropies = token_logprobs(torch.tensor([[1.0], [0.0]]), torch.tensor([2, 0]), head, 8)
    # Probabilities 1/8, 2/8, 5/8; then a third each.
    assert logprobs.tolist() == pytest.approx([math.log(5 / 8), math.log(1 / 3)], abs=1e-6)
    by_hand = -(1 / 8 * math.log(1 / 8) + 1 / 4 * math.log(1 / 4) + 5 / 8 * math.log(5 / 8))
    assert entropies.tolist() == pytest.approx([by_hand, math.log(3)], abs=1e-6)


def test_scale_soft_cap_and_bias_of_the_head() -> None:
    linear = torch.nn.Linear(1, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0], [3.0]]))
        linear.bias.copy_(torch.tensor([0.5, -1.0]))
    logits = OutputHead(linear, scale=2.0, softcap=4.0).logits(torch.tensor([[1.0]]))
    assert logits[0].tolist() == pytest.approx([4 * math.tanh(3 / 4), 4 * math.tanh(4 / 4)], abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "scale", "softcap"),
    [
        ({}, 1.0, None),
        ({"final_logit_softcapping": 30.0}, 1.0, 30.0),
        ({"logit_scale": 0.0625}, 0.0625, None),
        ({"logits_scaling": 8.0, "model_type": "granite"}, 0.125, None),
        ({"logits_scaling": 8.0, "model_type": "hyperclovax"}, 8.0, None),
    ],
)
def test_head_is_read_from_the_configuration(fields: dict[str, Any], scale: float, softcap: float | None) -> None:
    text_config = SimpleNamespace(**fields)
    causal_lm = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: text_config), get_output_embeddings=lambda: "module"
    )
    head = OutputHead.of(causal_lm)
    assert (head.module, head.scale, head.softcap) == ("module", scale, softcap)


@pytest.mark.parametrize("chunk_tokens", [1, 4, 11, 64])
def test_chunks_change_nothing_but_the_logits_held_at_once(chunk_tokens: int) -> None:
    torch.manual_seed(0)
    linear = CountingHead(8, 50, bias=True)
    head = OutputHead(linear)
    targets = torch.randint(0, 50, (11,))
    hidden = torch.randn(11, 8, requires_grad=True)
    direct = linear(hidden).log_softmax(-1)
    expected = direct.gather(-1, targets[:, None])[:, 0]
    slopes = torch.linspace(-1, 1, 11)
    (expected_gradient,) = torch.autograd.grad((expected * slopes).sum(), hidden)
    linear.asked.clear()

    logprobs, entropies = token_logprobs(hidden, targets, head, chunk_tokens)
    (gradient,) = torch.autograd.grad((logprobs * slopes).sum(), hidden)

    torch.testing.assert_close(logprobs, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(entropies, -(direct.exp() * direct).sum(-1).detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=0)
    assert max(linear.asked) <= chunk_tokens
    assert sum(linear.asked) == 22  # once forwards, once more for the backward pass
    assert not entropies.requires_grad


def test_half_precision_states_give_float32_logprobs() -> None:
    torch.manual_seed(0)
    head = OutputHead(torch.nn.Linear(16, 30, bias=False).to(torch.bfloat16))
    hidden = torch.randn(5, 16).to(torch.bfloat16)
    logprobs, entropies = token_logprobs(hidden, torch.arange(5), head, 2)
    assert logprobs.dtype == entropies.dtype == torch.float32
    assert (logprobs != logprobs.to(torch.bfloat16).float()).any()


def test_no_targets_give_empty_connected_results() -> None:
    hidden = torch.zeros(0, 4, requires_grad=True)
    logprobs, entropies = token_logprobs(hidden, torch.zeros(0, dtype=torch.long), OutputHead(None), 8)
    assert logprobs.shape == entropies.shape == (0,)
    assert logprobs.requires_grad


def test_only_predictions_that_a_loss_looks_at_are_wanted() -> None:
    mask = torch.tensor([[False, False, True, True, False, False]])
    logprobs = torch.tensor([[math.nan, math.nan, math.nan, -1.0, math.nan, -2.0]])
    wanted = wanted_predictions(mask, logprobs)
    assert wanted.tolist() == [[False, True, True, False, True, False]]
    assert scatter_predictions(torch.tensor([1.0, 2.0, 3.0]), wanted).tolist() == [[0, 1, 2, 0, 3, 0]]
