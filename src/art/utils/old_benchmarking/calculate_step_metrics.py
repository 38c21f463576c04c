"""How much rewards vary within groups."""

from __future__ import annotations

from art.trajectories import TrajectoryGroup
from art.utils.mean import mean


def calculate_step_std_dev(trajectory_groups: list[TrajectoryGroup]) -> float:
    """Give the mean, over groups with more than one trajectory, of the standard deviation of their rewards.

    It is the population's deviation; 0 where no group has two trajectories.
    """
    deviations = []
    for group in trajectory_groups:
        rewards = [trajectory.reward for trajectory in group.trajectories]
        if len(rewards) > 1:
            center = mean(rewards)
            # A product, since a power that is too large is an error.
            deviations.append(mean((reward - center) * (reward - center) for reward in rewards) ** 0.5)
    return mean(deviations) if deviations else 0.0
