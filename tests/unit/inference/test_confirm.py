"""The verdict on a probe's answer, by hand-made numbers."""

from __future__ import annotations

import math

import pytest

from art.inference.confirm import Reference, coarser_dtype, judge_probe, mean_gap

BASE = Reference("the base model", trainer_logprobs=(-1.0, -1.0), server_logprobs=(-1.001, -1.0))
STEP_6 = Reference("step 6", trainer_logprobs=(-2.0, -2.0), server_logprobs=(-2.0, -2.001))


def judge(
    expected: tuple[float, ...], answered: tuple[float, ...], *, dtype: str = "float32", **more: float
) -> str | None:
    return judge_probe(expected=expected, answered=answered, references=[BASE, STEP_6], dtype=dtype, **more).evidence


def test_gap_is_the_mean_of_absolute_differences() -> None:
    assert mean_gap((-1.0, -2.0), (-1.5, -1.9)) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="cannot be compared"):
        mean_gap((-1.0,), ())


def test_own_weights_pass() -> None:
    assert judge((-3.0, -3.0), (-3.0005, -3.0)) is None


def test_answer_of_the_previous_step_is_stale() -> None:
    evidence = judge((-3.0, -3.0), (-2.0, -2.001))
    assert evidence is not None
    assert "step 6" in evidence


def test_answer_of_the_base_model_is_stale() -> None:
    evidence = judge((-3.0, -3.0), (-1.001, -1.0))
    assert evidence is not None
    assert "base model" in evidence


def test_stale_answer_within_the_limit_is_still_found() -> None:
    # In bfloat16 a gap of 0.1 nats is allowed, but a server that did not move while the trainer moved by 0.1 is stale.
    evidence = judge((-2.1, -2.1), (-2.0, -2.001), dtype="bfloat16")
    assert evidence is not None
    assert "step 6" in evidence


def test_step_that_changed_nothing_measurable_passes() -> None:
    assert judge((-2.00001, -2.0), (-2.0, -2.001)) is None


def test_other_weights_altogether_exceed_the_limit() -> None:
    evidence = judge((-3.0, -3.0), (-4.0, -5.0))
    assert evidence is not None
    assert "1.5 nats" in evidence
    assert judge((-3.0, -3.0), (-4.0, -5.0), max_gap=2.0) is None


def test_nan_is_stale() -> None:
    assert judge((-3.0, -3.0), (math.nan, -3.0)) is not None


def test_coarser_type_decides() -> None:
    assert coarser_dtype("float32", "bfloat16") == "bfloat16"
    assert coarser_dtype("quantized", "bfloat16") == "quantized"
    assert coarser_dtype("float32", "float8_e4m3fn") == "bfloat16"
