"""Read a run's loss and share of right answers back from its history, and draw them."""

from __future__ import annotations

import json
from pathlib import Path


def read_history(run_dir: Path) -> dict[int, dict[str, float]]:
    """Return everything that was logged for each step, oldest step first; nothing if there is no history yet."""
    history = run_dir / "history.jsonl"
    steps: dict[int, dict[str, float]] = {}
    if history.is_file():
        for line in history.read_text().splitlines():
            row = json.loads(line)
            steps.setdefault(row["training_step"], {}).update(row)
    return dict(sorted(steps.items()))


def draw_history(steps: dict[int, dict[str, float]], picture: Path) -> None:
    """Draw the loss and the share of right answers of each step as a PNG."""
    import matplotlib

    matplotlib.use("Agg")  # needs no display
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    losses = {step: row["loss/train"] for step, row in steps.items() if "loss/train" in row}
    shares = {step: row["val/correct"] for step, row in steps.items() if "val/correct" in row}
    loss_line = axes.plot(list(losses), list(losses.values()), marker="o", color="tab:blue", label="loss")
    axes.set(xlabel="training step", ylabel="loss per trained token, in nats", ylim=(0, None), title="calendar entries")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    right = axes.twinx()
    share_line = right.plot(
        list(shares), list(shares.values()), marker="s", color="tab:orange", label="held-out requests answered right"
    )
    right.set(ylim=(0, 1.05))
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.legend(handles=[*loss_line, *share_line], loc="outside lower center", ncols=2)
    figure.savefig(picture, dpi=150)
    pyplot.close(figure)
