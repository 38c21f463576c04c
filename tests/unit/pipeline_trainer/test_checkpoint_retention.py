"""Which checkpoints stay."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from art.pipeline_trainer import CheckpointInfo, CheckpointRetentionContext, keep_recent_and_top


def make_context(**values: float | None) -> CheckpointRetentionContext:
    """Make a context of steps `s1=0.5`, whose values are those of `val/reward`."""
    checkpoints = [
        CheckpointInfo(
            step=int(name[1:]),
            path=f"/x/{name}",
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            metrics={} if value is None else {"val/reward": value},
        )
        for name, value in values.items()
    ]
    return CheckpointRetentionContext(current_step=9, checkpoints=checkpoints)


def test_the_newest_and_the_best_stay() -> None:
    context = make_context(s1=0.9, s2=0.1, s3=None, s4=0.9, s5=0.2, s6=None)
    assert set(keep_recent_and_top(recent=2, top=1)(context)) == {5, 6, 4}
    assert set(keep_recent_and_top(recent=1, top=2)(context)) == {6, 4, 1}
    assert set(keep_recent_and_top(recent=0, top=0)(context)) == set()
    assert set(keep_recent_and_top(recent=1, top=5, metric="val/other")(context)) == {6}


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="recent=-1"):
        keep_recent_and_top(recent=-1)
