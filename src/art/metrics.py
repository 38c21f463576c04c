"""Collects what a training step costs, takes and counts, and keeps running totals of it.

`Model.log` flushes the builder of its model into every history row; scripts reach it with `model.metrics_builder()`.
Averages of rewards and the like are not its business.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import Token
from dataclasses import dataclass, field
from typing import Any

from art.api_costs import (
    CostExtractor,
    CostRecorder,
    TokenPricing,
    active_recorder,
    extract_api_cost,
    normalize_provider,
    track_api_cost,
)
from art.errors import ConfigurationError
from art.metric_keys import (
    cost_rollups,
    has_total,
    is_builder_managed_metric,
    is_cumulative_metric_key,
    refuse_bad_keys,
    to_cumulative_metric_key,
    token_rates,
)

__all__ = [
    "MetricsBuilder",
    "is_builder_managed_metric",
    "is_cumulative_metric_key",
    "to_cumulative_metric_key",
    "track_api_cost",
]

EVAL_SCOPE = "eval"
UNIQUE_SCENARIOS_KEY = "data/cum/num_unique_scenarios"
# What an evaluation counts is no part of the training data that the totals speak of.
_TRAIN_ONLY_PREFIX = "data/step_num_"


@dataclass
class _SharedMetricsState:
    """What all views of a builder have in common. Every access holds the lock."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    totals: dict[str, float] = field(default_factory=dict)
    scenario_ids: set[str] = field(default_factory=set)
    pending: dict[str, dict[str, float]] = field(default_factory=dict)
    pending_scenario_ids: dict[str, set[str]] = field(default_factory=dict)
    cost_extractors: dict[str, CostExtractor] = field(default_factory=dict)
    model_pricing: dict[str, TokenPricing] = field(default_factory=dict)


class MetricsBuilder:
    """Sums metrics over a step, and keeps their totals. Safe to use from several threads.

    Args:
        cost_context: Where costs of API answers go: `costs/{cost_context}/{source}`.
    """

    def __init__(
        self,
        cost_context: str,
        *,
        _shared_state: _SharedMetricsState | None = None,
        _buffer_scope: str | None = None,
    ) -> None:
        if not cost_context or cost_context != cost_context.strip("/ "):
            raise ConfigurationError(f"cost context {cost_context!r} is not usable as part of a metric's name")
        self.cost_context = cost_context
        self._shared = _shared_state if _shared_state is not None else _SharedMetricsState()
        self._scope = _buffer_scope if _buffer_scope is not None else cost_context

    # Adding ---------------------------------------------------------------------------------------------------

    def add_metric(self, key: str, value: float) -> None:
        """Add to the pending sum of a metric.

        Raises:
            ConfigurationError: The key has no section, is reserved for totals, or lies above or below a pending one.
        """
        self.add_metrics({key: value})

    def add_metrics(self, values: Mapping[str, float]) -> None:
        """Add several metrics, or none of them if one is refused. Errors as for `add_metric`."""
        with self._shared.lock:
            pending = self._shared.pending.setdefault(self._scope, {})
            refuse_bad_keys(values, pending)
            for key, value in values.items():
                pending[key] = pending.get(key, 0.0) + float(value)

    def check_metrics(self, values: Mapping[str, float]) -> None:
        """Raise what `add_metrics` would raise, and add nothing."""
        with self._shared.lock:
            refuse_bad_keys(values, self._shared.pending.get(self._scope, {}))

    def add_cost(self, path: str, usd: float) -> None:
        """Add a cost in USD under `costs/{path}`."""
        self.add_metric(f"costs/{path}", usd)

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
        """Add what an API's answer cost, under `costs/{cost_context}/{source}`.

        Returns:
            The cost in USD; None, and nothing is added, where the answer tells neither a cost nor token counts.

        Raises:
            ConfigurationError: The price of the model is not known, or the provider's token counts cannot be read.
        """
        with self._shared.lock:
            extractors, pricing = dict(self._shared.cost_extractors), dict(self._shared.model_pricing)
        cost = extract_api_cost(
            response,
            provider=provider,
            model_name=model_name,
            prompt_price_per_million=prompt_price_per_million,
            completion_price_per_million=completion_price_per_million,
            cached_prompt_price_per_million=cached_prompt_price_per_million,
            cache_creation_price_per_million=cache_creation_price_per_million,
            cache_read_price_per_million=cache_read_price_per_million,
            cost_extractors=extractors,
            model_pricing=pricing,
        )
        if cost is not None:
            self.add_cost(f"{self.cost_context}/{source}", cost)
        return cost

    def add_data(
        self,
        step_num_scenarios: int | None = None,
        step_actor_tokens: int | None = None,
        scenario_ids: list[str] | None = None,
    ) -> None:
        """Add counts of the step's data; the ids feed the total number of different scenarios."""
        self._add_given("data", step_num_scenarios=step_num_scenarios, step_actor_tokens=step_actor_tokens)
        if scenario_ids:
            with self._shared.lock:
                self._shared.pending_scenario_ids.setdefault(self._scope, set()).update(scenario_ids)

    def add_user_timing(
        self,
        step_wall_s: float | None = None,
        step_actor_s: float | None = None,
        step_eval_s: float | None = None,
    ) -> None:
        """Add seconds that the step took, that rollouts took, that evaluation took."""
        self._add_given("time", step_wall_s=step_wall_s, step_actor_s=step_actor_s, step_eval_s=step_eval_s)

    def add_idle_times(self, step_trainer_idle_s: float | None = None, step_actor_idle_s: float | None = None) -> None:
        """Add seconds that the trainer, or the rollouts, waited for the other."""
        self._add_given("throughput", step_trainer_idle_s=step_trainer_idle_s, step_actor_idle_s=step_actor_idle_s)

    @contextlib.contextmanager
    def measure(self, key: str) -> Iterator[None]:
        """Add the seconds that the block takes, also when it raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add_metric(key, time.monotonic() - started)

    def _add_given(self, section: str, **values: float | None) -> None:
        self.add_metrics({f"{section}/{name}": value for name, value in values.items() if value is not None})

    # Reading out ----------------------------------------------------------------------------------------------

    async def flush(self) -> dict[str, float]:
        """Give the pending sums with their roll-ups, totals and rates, and begin a new step.

        Returns:
            The sums; for costs also every path above them and `costs/all`; the totals `section/cum/…`; token rates.
        """
        return self.flush_now()

    def flush_now(self) -> dict[str, float]:
        """Do what `flush` does, for callers outside an event loop."""
        shared = self._shared
        with shared.lock:
            pending = shared.pending.pop(self._scope, {})
            row = pending | cost_rollups(pending)
            row |= self._add_to_totals(row)
            scenario_ids = shared.pending_scenario_ids.pop(self._scope, None)
            if scenario_ids:
                shared.scenario_ids |= scenario_ids
                row[UNIQUE_SCENARIOS_KEY] = float(len(shared.scenario_ids))
            row |= token_rates(pending, shared.totals)
            return row

    def _add_to_totals(self, row: Mapping[str, float]) -> dict[str, float]:
        totals = self._shared.totals
        changed = {}
        for key, value in row.items():
            if not has_total(key) or (self._scope == EVAL_SCOPE and key.startswith(_TRAIN_ONLY_PREFIX)):
                continue
            total_key = to_cumulative_metric_key(key)
            totals[total_key] = changed[total_key] = totals.get(total_key, 0.0) + value
        return changed

    # Which builder is current ---------------------------------------------------------------------------------

    def activate(self) -> Token[CostRecorder]:
        """Make this the current task's builder; undo it with `token.var.reset(token)`."""
        return active_recorder.set(self)

    @contextlib.contextmanager
    def activate_context(self) -> Iterator[MetricsBuilder]:
        """Make this the current builder inside the block."""
        token = self.activate()
        try:
            yield self
        finally:
            active_recorder.reset(token)

    @staticmethod
    def get_active() -> MetricsBuilder:
        """Give the current task's builder.

        Raises:
            LookupError: None is active.
        """
        recorder = active_recorder.get(None)
        if not isinstance(recorder, MetricsBuilder):
            raise LookupError("no metrics builder is active; use model.activate_metrics_context or activate_context")
        return recorder

    def for_cost_context(self, cost_context: str, *, buffer_scope: str | None = None) -> MetricsBuilder:
        """Give a view with another cost context, which shares totals, extractors and prices.

        Args:
            cost_context: The view's cost context.
            buffer_scope: Views with the same scope share what is pending; None: the scope is the cost context.
        """
        return MetricsBuilder(cost_context, _shared_state=self._shared, _buffer_scope=buffer_scope)

    # Prices and state, shared by all views --------------------------------------------------------------------

    def register_cost_extractor(self, provider: str, extractor: CostExtractor) -> None:
        """Have a function find the cost in this provider's answers; it may return None to leave it to token counts."""
        name = normalize_provider(provider)
        if name is None:
            raise ConfigurationError("a cost extractor needs the name of its provider")
        with self._shared.lock:
            self._shared.cost_extractors[name] = extractor

    def register_model_pricing(
        self,
        model_name: str,
        *,
        prompt_per_million: float,
        completion_per_million: float,
        cached_prompt_per_million: float | None = None,
        cache_creation_per_million: float | None = None,
        cache_read_per_million: float | None = None,
    ) -> None:
        """Set a model's prices in USD for a million tokens; see `art.api_costs.TokenPricing`."""
        with self._shared.lock:
            self._shared.model_pricing[model_name.strip()] = TokenPricing(
                prompt_per_million=prompt_per_million,
                completion_per_million=completion_per_million,
                cached_prompt_per_million=cached_prompt_per_million,
                cache_creation_per_million=cache_creation_per_million,
                cache_read_per_million=cache_read_per_million,
            )

    def state_dict(self) -> dict[str, Any]:
        """Give the totals in a form that JSON can hold."""
        with self._shared.lock:
            return {
                "cum_state": dict(self._shared.totals),
                "unique_scenario_ids": sorted(self._shared.scenario_ids),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the totals by stored ones, and drop what is pending."""
        with self._shared.lock:
            self.load_totals(state)
            self._shared.pending.clear()
            self._shared.pending_scenario_ids.clear()

    def load_totals(self, state: Mapping[str, Any]) -> None:
        """Replace the totals by stored ones, and keep what is pending."""
        totals = {str(key): float(value) for key, value in (state.get("cum_state") or {}).items()}
        scenario_ids = {str(scenario_id) for scenario_id in state.get("unique_scenario_ids") or ()}
        with self._shared.lock:
            self._shared.totals = totals
            self._shared.scenario_ids = scenario_ids

    def add_totals(self, sums: Mapping[str, float], scenario_ids: Iterable[str]) -> None:
        """Add to the totals what others have counted."""
        with self._shared.lock:
            for key, value in sums.items():
                self._shared.totals[key] = self._shared.totals.get(key, 0.0) + value
            self._shared.scenario_ids.update(scenario_ids)
