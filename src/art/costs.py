"""Prices of training and sampling by the token, for hosted trainers. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from art.errors import ConfigurationError

TokenCount: TypeAlias = int | None
CostCalculator: TypeAlias = Callable[[TokenCount, TokenCount, str], dict[str, float]]
"""Takes prompt tokens, completion tokens and a cost context; gives USD by metric key."""

TOKENS_PER_PRICE_UNIT = 1_000_000


@dataclass(frozen=True)
class ModelPricing:
    """USD for a million tokens.

    Attributes:
        prefill: Prompt tokens.
        sample: Sampled tokens.
        train: Tokens trained on.
    """

    prefill: float
    sample: float
    train: float


MODEL_PRICING: dict[str, ModelPricing] = {}
"""Prices by model name. Empty: machines of your own have no price by the token; add entries for those that do."""


def get_model_pricing(model_name: str | None, *, strict: bool = False) -> ModelPricing | None:
    """Look up a model's prices.

    Returns:
        The prices, or None where the model has none.

    Raises:
        ConfigurationError: The model has none, and `strict` is set.
    """
    pricing = MODEL_PRICING.get(model_name) if model_name is not None else None
    if pricing is None and strict:
        raise ConfigurationError(f"no prices for model {model_name!r}; add them to art.costs.MODEL_PRICING")
    return pricing


def tokens_to_cost(num_tokens: float, price_per_million: float) -> float:
    """Give the USD that this many tokens cost."""
    return num_tokens * price_per_million / TOKENS_PER_PRICE_UNIT


def compute_sample_costs(
    *, prompt_tokens: int | None, completion_tokens: int | None, cost_context: str, pricing: ModelPricing
) -> dict[str, float]:
    """Give the USD of one request, prompt and completion apart; unknown counts are taken as 0."""
    return {
        f"costs/{cost_context}/tinker_prefill": tokens_to_cost(prompt_tokens or 0, pricing.prefill),
        f"costs/{cost_context}/tinker_sample": tokens_to_cost(completion_tokens or 0, pricing.sample),
    }


def compute_train_cost(train_tokens: float, pricing: ModelPricing) -> float:
    """Give the USD of training on this many tokens."""
    return tokens_to_cost(train_tokens, pricing.train)


def build_cost_calculator(pricing: ModelPricing) -> CostCalculator:
    """Make a function that prices requests, for `TrainableModel.set_cost_calculator`."""

    def calculate(prompt_tokens: TokenCount, completion_tokens: TokenCount, cost_context: str) -> dict[str, float]:
        return compute_sample_costs(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost_context=cost_context,
            pricing=pricing,
        )

    return calculate
