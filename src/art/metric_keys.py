"""Names of the metrics that are summed over a step, and the arithmetic that follows from the names. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from art.errors import ConfigurationError

COSTS_TOTAL_KEY = "costs/all"
TRAINED_ROLES = ("trainer", "actor")

_MANAGED_PREFIXES = ("costs/", "time/step_", "data/step_", "throughput/step_")
_CUMULATED_SECTIONS = ("costs", "time", "data")


def is_cumulative_metric_key(key: str) -> bool:
    """Tell whether a key names a running total, such as `costs/cum/all`."""
    parts = key.split("/")
    return len(parts) > 2 and parts[1] == "cum"


def is_builder_managed_metric(key: str) -> bool:
    """Tell whether values under this key are summed over a step, instead of averaged."""
    return key.startswith(_MANAGED_PREFIXES) and not is_cumulative_metric_key(key)


def to_cumulative_metric_key(key: str) -> str:
    """Give the name of a metric's running total: `data/step_trainer_tokens` becomes `data/cum/trainer_tokens`."""
    section, _, name = key.partition("/")
    return f"{section}/cum/{name.removeprefix('step_')}"


def has_total(key: str) -> bool:
    """Tell whether a running total of this metric is kept."""
    is_idle_time = key in [f"throughput/step_{role}_idle_s" for role in TRAINED_ROLES]
    return is_idle_time or key.partition("/")[0] in _CUMULATED_SECTIONS


def refuse_bad_keys(values: Mapping[str, float], pending: Mapping[str, float]) -> None:
    """Check that these metrics can be summed beside those that are pending.

    Raises:
        ConfigurationError: A key has no section, names something computed, or lies above or below another one.
    """
    known = set(pending)
    for key in values:
        if "/" not in key.strip("/"):
            raise ConfigurationError(f"metric {key!r} needs a section, as in 'costs/{key.strip('/') or 'judge'}'")
        if is_cumulative_metric_key(key) or key == COSTS_TOTAL_KEY:
            raise ConfigurationError(f"metric {key!r} is computed from the others and cannot be given")
        parts = key.split("/")
        above = {"/".join(parts[:length]) for length in range(1, len(parts))} & known
        below = {other for other in known if other.startswith(f"{key}/")}
        for other in sorted(above | below):
            raise ConfigurationError(
                f"metric {key!r} cannot stand beside {other!r}: one would be part of the other's sum; rename one"
            )
        known.add(key)


def cost_rollups(pending: Mapping[str, float]) -> dict[str, float]:
    """Sum costs for every path above them, and over all."""
    rollups: dict[str, float] = {}
    for key, value in pending.items():
        if not key.startswith("costs/"):
            continue
        parts = key.split("/")
        parents = ["/".join(parts[:length]) for length in range(2, len(parts))]
        for parent in [COSTS_TOTAL_KEY, *parents]:
            rollups[parent] = rollups.get(parent, 0.0) + value
    return rollups


def token_rates(pending: Mapping[str, float], totals: Mapping[str, float]) -> dict[str, float]:
    """Give average tokens a second over the whole run, for whoever worked in this step."""
    rates = {}
    for role in TRAINED_ROLES:
        if f"data/step_{role}_tokens" not in pending and f"time/step_{role}_s" not in pending:
            continue
        tokens, seconds = totals.get(f"data/cum/{role}_tokens"), totals.get(f"time/cum/{role}_s")
        if tokens is not None and seconds:
            rates[f"throughput/avg_{role}_tok_per_s"] = tokens / seconds
    return rates
