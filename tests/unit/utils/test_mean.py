from __future__ import annotations

import math

import pytest

from art.trajectories import TrajectoryGroup
from art.utils.mean import mean
from art.utils.old_benchmarking.calculate_step_metrics import calculate_step_std_dev
from tests.support.conversations import make_trajectory

LARGEST = 1.7976931348623157e308


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, 2.0, 6.0], 3.0), ([True, False], 0.5), ([LARGEST, LARGEST], math.inf), ([math.inf, 1.0], math.inf)],
)
def test_mean(values: list[float], expected: float) -> None:
    assert mean(values) == expected


def test_mean_of_opposite_infinities_is_no_number() -> None:
    assert math.isnan(mean([math.inf, -math.inf]))


@pytest.mark.parametrize("rewards", [(LARGEST, -LARGEST), (LARGEST, 0.0), (math.inf, -math.inf), (math.inf, 0.0)])
def test_deviation_of_rewards_of_any_size_is_no_error(rewards: tuple[float, float]) -> None:
    deviation = calculate_step_std_dev([TrajectoryGroup(make_trajectory(reward) for reward in rewards)])

    assert not math.isfinite(deviation)
