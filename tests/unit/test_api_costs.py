"""What an API's answer cost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types import CompletionUsage

from art import costs
from art.api_costs import TokenPricing, extract_api_cost, normalize_model_name, normalize_provider, track_api_cost
from art.metrics import MetricsBuilder

PRICES = {"known": TokenPricing(2.0, 8.0, cached_prompt_per_million=0.5)}


def cost(response: Any, *, provider: str = "openai", model_name: str = "known", **overrides: Any) -> float | None:
    arguments: dict[str, Any] = {
        "prompt_price_per_million": None,
        "completion_price_per_million": None,
        "cached_prompt_price_per_million": None,
        "cache_creation_price_per_million": None,
        "cache_read_price_per_million": None,
        "cost_extractors": {},
        "model_pricing": PRICES,
        **overrides,
    }
    return extract_api_cost(response, provider=provider, model_name=model_name, **arguments)


def openai_usage(prompt: int, completion: int, cached: int | None = None) -> SimpleNamespace:
    details = None if cached is None else {"cached_tokens": cached}
    usage = CompletionUsage.model_validate(
        {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": details,
        }
    )
    return SimpleNamespace(usage=usage)


def test_openai_tokens_times_price() -> None:
    assert cost(openai_usage(500_000, 250_000)) == pytest.approx(1.0 + 2.0)
    assert cost(openai_usage(500_000, 0, cached=400_000)) == pytest.approx(0.2 + 0.2)


def test_cached_tokens_without_a_price_cost_as_prompt() -> None:
    pricing = {"known": TokenPricing(2.0, 8.0)}
    assert cost(openai_usage(500_000, 0, cached=400_000), model_pricing=pricing) == pytest.approx(1.0)


def test_anthropic_tokens_times_price() -> None:
    usage = {
        "input_tokens": 1_000_000,
        "cache_creation_input_tokens": 100_000,
        "cache_read_input_tokens": 200_000,
        "output_tokens": 10_000,
    }
    pricing = {
        "claude": TokenPricing(3.0, 15.0, cache_creation_per_million=3.75, cache_read_per_million=0.3),
        "bare": TokenPricing(3.0, 15.0),
    }
    answer = {"usage": usage}
    assert cost(answer, provider="anthropic", model_name="claude", model_pricing=pricing) == pytest.approx(
        3.0 + 0.375 + 0.06 + 0.15
    )
    assert cost(answer, provider="anthropic", model_name="bare", model_pricing=pricing) == pytest.approx(
        3.0 + 0.3 + 0.6 + 0.15
    )


def test_overrides_win_and_suffice_without_known_prices() -> None:
    answer = openai_usage(1_000_000, 1_000_000)
    assert cost(answer, prompt_price_per_million=1.0) == pytest.approx(1.0 + 8.0)
    assert cost(
        answer, model_name="unknown", prompt_price_per_million=1.0, completion_price_per_million=3.0
    ) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="unknown"):
        cost(answer, model_name="unknown", prompt_price_per_million=1.0)


def test_cost_that_the_answer_states_comes_first() -> None:
    assert cost({"usage": {"cost": 0.125, "prompt_tokens": 10}}, model_name="unknown") == 0.125
    assert cost({"usage": {"cost": {"total_cost": 0.5}}}, model_name="unknown") == 0.5
    extra = SimpleNamespace(usage=SimpleNamespace(model_extra={"cost": "0.75"}))
    assert cost(extra, model_name="unknown") == 0.75
    headers = {"llm_provider-x-litellm-response-cost": "0.03"}
    hidden = SimpleNamespace(usage=None, _hidden_params={"additional_headers": headers})
    assert cost(hidden, provider="elsewhere") == 0.03


def test_extractor_comes_before_tokens_and_may_pass() -> None:
    answer = openai_usage(1_000_000, 0)
    assert cost(answer, cost_extractors={"openai": lambda _: 9}) == 9.0
    assert cost(answer, cost_extractors={"openai": lambda _: None}) == pytest.approx(2.0)


def test_unknown_provider_without_extractor_is_an_error() -> None:
    with pytest.raises(ValueError, match="acme"):
        cost(openai_usage(1, 1), provider="acme")


def test_answer_without_usage_has_no_cost() -> None:
    assert cost(SimpleNamespace(usage=None)) is None


def test_name_with_provider_and_the_built_in_table_are_found() -> None:
    answer = openai_usage(1_000_000, 0)
    assert cost(answer, model_name="openai/known") == pytest.approx(2.0)
    assert cost(answer, model_name="openai/gpt-4.1-nano") == pytest.approx(0.10)


def test_training_prices_are_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(costs.MODEL_PRICING, "org/trained", costs.ModelPricing(prefill=1.0, sample=2.0, train=4.0))
    assert cost(openai_usage(1_000_000, 1_000_000), model_name="org/trained") == pytest.approx(3.0)


def test_normalising() -> None:
    assert normalize_provider(" OpenAI ") == "openai"
    assert normalize_provider("  ") is None
    assert normalize_model_name("openai/gpt-4o ") == "gpt-4o"
    assert normalize_model_name(None) is None


def test_tracked_functions_record_on_the_active_builder() -> None:
    builder = MetricsBuilder("train")
    prices: dict[str, Any] = {"prompt_price_per_million": 1.0, "completion_price_per_million": 1.0}

    @track_api_cost(source="judge", provider="openai", model_name="m", **prices)
    async def ask() -> SimpleNamespace:
        return openai_usage(1_000_000, 0)

    @track_api_cost(source="tool", provider="openai", model_name="m", response_getter=lambda pair: pair[1], **prices)
    def call(number: int) -> tuple[int, SimpleNamespace]:
        return number, openai_usage(0, 2_000_000)

    async def run() -> dict[str, float]:
        await ask()  # no builder is active: nothing happens
        with builder.activate_context():
            await ask()
            assert call(5)[0] == 5
        return await builder.flush()

    row = asyncio.run(run())
    assert row["costs/train/judge"] == pytest.approx(1.0)
    assert row["costs/train/tool"] == pytest.approx(2.0)
    assert ask.__name__ == "ask"


def test_prices_by_the_token() -> None:
    pricing = costs.ModelPricing(prefill=1.0, sample=2.0, train=4.0)
    assert costs.tokens_to_cost(500_000, 3.0) == 1.5
    assert costs.compute_train_cost(250_000, pricing) == 1.0
    assert costs.build_cost_calculator(pricing)(1_000_000, None, "eval") == {
        "costs/eval/tinker_prefill": 1.0,
        "costs/eval/tinker_sample": 0.0,
    }
    assert costs.get_model_pricing("none") is None
    with pytest.raises(ValueError, match="none"):
        costs.get_model_pricing("none", strict=True)
