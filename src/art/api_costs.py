"""What an answer of a paid API cost, and recording that on the metrics builder that is active.

Not for our own inference server, whose tokens have no price.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from art.costs import MODEL_PRICING, tokens_to_cost
from art.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
CostExtractor = Callable[[Any], float | None]
ResponseGetter = Callable[[Any], Any]

OPENAI_PROVIDER = "openai"
ANTHROPIC_PROVIDER = "anthropic"
LITELLM_COST_HEADER = "llm_provider-x-litellm-response-cost"


@dataclass(frozen=True)
class TokenPricing:
    """USD for a million tokens of an API model.

    Attributes:
        prompt_per_million: Prompt tokens.
        completion_per_million: Sampled tokens.
        cached_prompt_per_million: Prompt tokens found in OpenAI's cache; None: as prompt tokens.
        cache_creation_per_million: Prompt tokens written to Anthropic's cache; None: as prompt tokens.
        cache_read_per_million: Prompt tokens found in Anthropic's cache; None: as prompt tokens.
    """

    prompt_per_million: float
    completion_per_million: float
    cached_prompt_per_million: float | None = None
    cache_creation_per_million: float | None = None
    cache_read_per_million: float | None = None


MODEL_TOKEN_PRICING: dict[str, TokenPricing] = {
    "gpt-4o": TokenPricing(2.50, 10.00, cached_prompt_per_million=1.25),
    "gpt-4o-mini": TokenPricing(0.15, 0.60, cached_prompt_per_million=0.075),
    "gpt-4.1": TokenPricing(2.00, 8.00, cached_prompt_per_million=0.50),
    "gpt-4.1-mini": TokenPricing(0.40, 1.60, cached_prompt_per_million=0.10),
    "gpt-4.1-nano": TokenPricing(0.10, 0.40, cached_prompt_per_million=0.025),
    "o3": TokenPricing(2.00, 8.00, cached_prompt_per_million=0.50),
    "o4-mini": TokenPricing(1.10, 4.40, cached_prompt_per_million=0.275),
}
"""List prices of common judges. Prices change: `MetricsBuilder.register_model_pricing` takes precedence."""


class CostRecorder(Protocol):
    """Takes the cost of an answer; `art.metrics.MetricsBuilder` is one."""

    def add_response_cost(
        self,
        source: str,
        response: Any,
        *,
        provider: str,
        model_name: str,
        prompt_price_per_million: float | None = None,
        completion_price_per_million: float | None = None,
        cached_prompt_price_per_million: float | None = None,
        cache_creation_price_per_million: float | None = None,
        cache_read_price_per_million: float | None = None,
    ) -> float | None:
        """Add the cost of this answer to the pending step."""


active_recorder: ContextVar[CostRecorder] = ContextVar("art_active_cost_recorder")
"""The recorder of the current task; set by `MetricsBuilder.activate`."""


def normalize_provider(provider: str | None) -> str | None:
    """Give a provider's name in lower case without surrounding space; None for an empty one."""
    return (provider or "").strip().lower() or None


def normalize_model_name(model_name: str | None) -> str | None:
    """Give a model's name without surrounding space and without a provider before a slash; None for an empty one."""
    return (model_name or "").strip().rpartition("/")[2] or None


def track_api_cost(
    *,
    source: str,
    provider: str,
    model_name: str,
    response_getter: ResponseGetter | None = None,
    prompt_price_per_million: float | None = None,
    completion_price_per_million: float | None = None,
    cached_prompt_price_per_million: float | None = None,
    cache_creation_price_per_million: float | None = None,
    cache_read_price_per_million: float | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a sync or async function that calls a paid API, so that each call's cost is recorded.

    The cost goes to the metrics builder that is active when the call returns; without one nothing happens.

    Args:
        source: Where the cost belongs; the metric is `costs/{the builder's cost context}/{source}`.
        provider: "openai", "anthropic", or one with a registered extractor.
        model_name: Decides the price where the answer itself does not tell its cost.
        response_getter: Finds the API's answer in what the function returns; None: it returns the answer.
        prompt_price_per_million: USD, overriding the known price; likewise the four below.
        completion_price_per_million: For sampled tokens.
        cached_prompt_price_per_million: For prompt tokens found in OpenAI's cache.
        cache_creation_price_per_million: For prompt tokens written to Anthropic's cache.
        cache_read_price_per_million: For prompt tokens found in Anthropic's cache.
    """

    def record(result: Any) -> None:
        recorder = active_recorder.get(None)
        if recorder is None:
            return
        recorder.add_response_cost(
            source,
            response_getter(result) if response_getter is not None else result,
            provider=provider,
            model_name=model_name,
            prompt_price_per_million=prompt_price_per_million,
            completion_price_per_million=completion_price_per_million,
            cached_prompt_price_per_million=cached_prompt_price_per_million,
            cache_creation_price_per_million=cache_creation_price_per_million,
            cache_read_price_per_million=cache_read_price_per_million,
        )

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                result = await function(*args, **kwargs)
                record(result)
                return result

            return cast(Callable[P, R], call_async)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            result = function(*args, **kwargs)
            record(result)
            return result

        return call

    return decorate


def extract_api_cost(
    response: Any,
    *,
    provider: str,
    model_name: str,
    prompt_price_per_million: float | None,
    completion_price_per_million: float | None,
    cached_prompt_price_per_million: float | None,
    cache_creation_price_per_million: float | None,
    cache_read_price_per_million: float | None,
    cost_extractors: Mapping[str, CostExtractor],
    model_pricing: Mapping[str, TokenPricing],
) -> float | None:
    """Find out what an answer cost, in USD.

    The first that works: the answer's own cost, the provider's extractor, token counts times price.

    Returns:
        The cost; None where the answer tells neither a cost nor token counts.

    Raises:
        ConfigurationError: The price of the model is not known, or the provider's token counts cannot be read.
    """
    stated = _stated_cost(response)
    if stated is not None:
        return stated
    provider_key = normalize_provider(provider)
    extractor = cost_extractors.get(provider_key or "")
    if extractor is not None:
        extracted = extractor(response)
        if extracted is not None:
            return float(extracted)
    if provider_key not in (OPENAI_PROVIDER, ANTHROPIC_PROVIDER):
        raise ConfigurationError(
            f"token counts of provider {provider!r} cannot be read; "
            "register a function with MetricsBuilder.register_cost_extractor"
        )
    usage = _get(response, "usage")
    if usage is None:
        return None
    pricing = _pricing(
        model_name,
        model_pricing,
        {
            "prompt_per_million": prompt_price_per_million,
            "completion_per_million": completion_price_per_million,
            "cached_prompt_per_million": cached_prompt_price_per_million,
            "cache_creation_per_million": cache_creation_price_per_million,
            "cache_read_per_million": cache_read_price_per_million,
        },
    )
    return _openai_cost(usage, pricing) if provider_key == OPENAI_PROVIDER else _anthropic_cost(usage, pricing)


def _get(container: Any, name: str) -> Any:
    if isinstance(container, Mapping):
        return container.get(name)
    return getattr(container, name, None)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _stated_cost(response: Any) -> float | None:
    usage = _get(response, "usage")
    cost = _get(usage, "cost")
    headers = _get(_get(response, "_hidden_params"), "additional_headers")
    for candidate in (
        cost,
        _get(cost, "total_cost"),
        _get(_get(usage, "model_extra"), "cost"),
        _get(headers, LITELLM_COST_HEADER),
    ):
        number = _number(candidate)
        if number is not None:
            return number
    return None


def _pricing(
    model_name: str, registered: Mapping[str, TokenPricing], overrides: Mapping[str, float | None]
) -> TokenPricing:
    given = {name: price for name, price in overrides.items() if price is not None}
    base = _base_pricing(model_name, registered)
    if base is not None:
        return replace(base, **given)
    if "prompt_per_million" in given and "completion_per_million" in given:
        return TokenPricing(**given)
    raise ConfigurationError(
        f"no prices for model {model_name!r}; give both prompt and completion prices, "
        "or register them with MetricsBuilder.register_model_pricing"
    )


def _base_pricing(model_name: str, registered: Mapping[str, TokenPricing]) -> TokenPricing | None:
    names = [name for name in (model_name, normalize_model_name(model_name)) if name is not None]
    for table in (registered, MODEL_TOKEN_PRICING):
        for name in names:
            if name in table:
                return table[name]
    for name in names:
        if name in MODEL_PRICING:
            return TokenPricing(MODEL_PRICING[name].prefill, MODEL_PRICING[name].sample)
    return None


def _count(container: Any, name: str) -> float:
    return _number(_get(container, name)) or 0.0


def _openai_cost(usage: Any, pricing: TokenPricing) -> float:
    cached = _count(_get(usage, "prompt_tokens_details"), "cached_tokens")
    cached_price = pricing.cached_prompt_per_million
    return (
        tokens_to_cost(_count(usage, "prompt_tokens") - cached, pricing.prompt_per_million)
        + tokens_to_cost(cached, pricing.prompt_per_million if cached_price is None else cached_price)
        + tokens_to_cost(_count(usage, "completion_tokens"), pricing.completion_per_million)
    )


def _anthropic_cost(usage: Any, pricing: TokenPricing) -> float:
    creation_price, read_price = pricing.cache_creation_per_million, pricing.cache_read_per_million
    base = pricing.prompt_per_million
    return (
        tokens_to_cost(_count(usage, "input_tokens"), base)
        + tokens_to_cost(
            _count(usage, "cache_creation_input_tokens"), base if creation_price is None else creation_price
        )
        + tokens_to_cost(_count(usage, "cache_read_input_tokens"), base if read_price is None else read_price)
        + tokens_to_cost(_count(usage, "output_tokens"), pricing.completion_per_million)
    )
