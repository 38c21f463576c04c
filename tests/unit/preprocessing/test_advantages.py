"""Advantages from rewards."""

from __future__ import annotations

import pytest

from art.preprocessing.advantages import group_advantages


def test_advantages_are_deviations_over_the_population_standard_deviation() -> None:
    # mean 2, squared deviations 1, 1, 4, 4 -> variance 2.5
    assert group_advantages([1, 3, 0, 4]).tolist() == pytest.approx(
        [-0.6324551, 0.6324551, -1.2649103, 1.2649103], abs=1e-6
    )


def test_unscaled_advantages_are_plain_deviations() -> None:
    assert group_advantages([1, 3, 0, 4], scale_rewards=False).tolist() == [-1, 1, -2, 2]


@pytest.mark.parametrize("rewards", [[0.1] * 3, [0.7] * 6, [1e9 + 0.1] * 7, [5.0], [0.0, 0.0]])
def test_equal_rewards_give_exact_zeros_despite_float_noise(rewards: list[float]) -> None:
    assert group_advantages(rewards).tolist() == [0.0] * len(rewards)


def test_a_reward_at_the_mean_gives_an_exact_zero() -> None:
    advantages = group_advantages([0.1, 0.2, 0.3], scale_rewards=False)
    assert advantages[1] == 0.0
    assert advantages.tolist() == pytest.approx([-0.1, 0, 0.1])


def test_small_but_real_differences_count() -> None:
    assert group_advantages([1.0, 1.0 + 1e-9], scale_rewards=False).all()


def test_rewards_that_are_no_numbers_take_no_part() -> None:
    advantages = group_advantages([1.0, float("nan"), 3.0, float("inf")], scale_rewards=False)
    assert advantages.tolist() == [-1, 0, 1, 0]


def test_no_rewards_give_no_advantages() -> None:
    assert group_advantages([]).tolist() == []
    assert group_advantages([float("nan")]).tolist() == [0.0]
