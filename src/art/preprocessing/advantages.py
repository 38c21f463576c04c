"""Advantages of the trajectories of a group, from their rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

EQUAL_REWARD_TOLERANCE = 1e-12  # relative; sums of rewards such as 0.1 or 0.7 are off by a few 1e-17
STANDARD_DEVIATION_FLOOR = 1e-6


def group_advantages(rewards: Sequence[float], scale_rewards: bool = True) -> npt.NDArray[np.float64]:
    """Measure each reward of a group against the group's mean.

    Args:
        rewards: One for each trajectory of the group.
        scale_rewards: Divide by the population standard deviation of the rewards.

    Returns:
        Advantages (G,). Exactly 0 where a reward equals the mean up to float noise, and where it is NaN or infinite;
        such a reward counts neither for the mean nor for the deviation.
    """
    values = np.asarray(rewards, dtype=np.float64)
    is_finite = np.isfinite(values)
    advantages = np.zeros_like(values)
    if not is_finite.any():
        return advantages
    finite = values[is_finite]
    deviations = finite - finite.mean()
    tolerance = EQUAL_REWARD_TOLERANCE * max(1.0, float(np.abs(finite).max()))
    scale = np.sqrt(np.mean(deviations**2)) + STANDARD_DEVIATION_FLOOR if scale_rewards else 1.0
    advantages[is_finite] = np.where(np.abs(deviations) <= tolerance, 0.0, deviations / scale)
    return advantages
