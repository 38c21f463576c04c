"""Compare what a server answers under an adapter's name with what the trainer computed. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Largest mean gap, in nats, between the trainer's and a healthy server's logprobs of the probe, by the coarser
# computation type of the two: measured 4e-6 to 5e-5 (float32) and up to 3e-2 (bfloat16) on small models, plus room.
# A trainer on 4-bit weights differs from a 16-bit engine by the quantisation itself.
GAP_LIMITS_NATS = {"float32": 0.01, "bfloat16": 0.2, "float16": 0.2, "quantized": 1.0}
# A change of the weights below this moves the probe less than two runs of one set of weights differ.
NOISE_NATS = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 3e-2, "quantized": 3e-2}
_COARSENESS = ["float32", "float16", "bfloat16", "quantized"]
_STILL_SHARE = 0.1  # a server that moved by less than this share of the trainer's change did not take it over


@dataclass(frozen=True)
class Reference:
    """Another set of weights that the server might answer with by mistake.

    Attributes:
        label: In words, such as "the base model" or "step 6".
        trainer_logprobs: The trainer's values for it.
        server_logprobs: The server's values for it.
    """

    label: str
    trainer_logprobs: tuple[float, ...]
    server_logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Confirmation:
    """Outcome of a probe.

    Attributes:
        logprob_gap: Mean absolute difference in nats.
        limit: What was allowed.
        evidence: Why the answer is stale, or None when it is not.
    """

    logprob_gap: float
    limit: float
    evidence: str | None


def judge_probe(
    *,
    expected: tuple[float, ...],
    answered: tuple[float, ...],
    references: list[Reference],
    dtype: str,
    max_gap: float | None = None,
) -> Confirmation:
    """Decide whether the server's answer comes from the weights that were published.

    Args:
        expected: The trainer's logprobs for the probe's tokens, T - 1 values.
        answered: The server's, T - 1 values.
        references: Weights that would be a mistake.
        dtype: The coarser computation type of trainer and engine.
        max_gap: Limit in nats; None chooses by `dtype`.
    """
    limit = GAP_LIMITS_NATS[dtype] if max_gap is None else max_gap
    gap = mean_gap(expected, answered)
    if not math.isfinite(gap):
        return Confirmation(gap, limit, "the answer holds values that are not finite")
    for reference in references:
        trainer_moved = mean_gap(expected, reference.trainer_logprobs)
        server_moved = mean_gap(answered, reference.server_logprobs)
        if trainer_moved > NOISE_NATS[dtype] and server_moved < _STILL_SHARE * trainer_moved:
            return Confirmation(
                gap,
                limit,
                f"the answer is that of {reference.label}: it differs from it by {server_moved:.2g} nats, "
                f"the trainer's weights by {trainer_moved:.2g}",
            )
    if gap > limit:
        return Confirmation(gap, limit, f"it differs from the trainer's logprobs by {gap:.3g} nats, limit {limit:g}")
    return Confirmation(gap, limit, None)


def mean_gap(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Return the mean absolute difference of two sequences of equal length.

    Raises:
        ValueError: Their lengths differ, or they are empty.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"sequences of {len(first)} and {len(second)} values cannot be compared")
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)


def coarser_dtype(first: str, second: str) -> str:
    """Return which of two computation types limits agreement; unknown types count as bfloat16."""
    known = [name if name in _COARSENESS else "bfloat16" for name in (first, second)]
    return max(known, key=_COARSENESS.index)
