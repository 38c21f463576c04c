"""Read a run's rewards back from its history, and draw them."""

from __future__ import annotations

import json
from pathlib import Path

PERFECT_REWARD = 1.0


def read_rewards(run_dir: Path) -> dict[int, float]:
    """Return the mean reward of every step that was logged, oldest step first; none if there is no history yet."""
    history = run_dir / "history.jsonl"
    if not history.is_file():
        return {}
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    rewards = {row["training_step"]: row["train/reward"] for row in rows if "train/reward" in row}
    return dict(sorted(rewards.items()))


def draw_rewards(rewards: dict[int, float], picture: Path, best_without_maybe: float) -> None:
    """Draw the reward of each step as a PNG; a dashed line shows what the second-best answer would give."""
    import matplotlib

    matplotlib.use("Agg")  # needs no display
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.axhline(best_without_maybe, linestyle="--", linewidth=1, color="tab:gray", label='always "no"')
    axes.plot(list(rewards), list(rewards.values()), marker="o", color="tab:blue", label="mean reward")
    axes.set(xlabel="training step", ylabel="mean reward", ylim=(0, PERFECT_REWARD * 1.05), title="yes, no, or maybe")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(picture, dpi=150)
    pyplot.close(figure)
