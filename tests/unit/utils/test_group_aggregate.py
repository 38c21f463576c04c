"""Reductions by label."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from art.utils.group_aggregate import group_aggregate
from tests.support.tokenizers import load_golden

GOLDEN = load_golden("group_aggregate.json")
VALUES, BY = torch.tensor(GOLDEN["values"]), torch.tensor(GOLDEN["by"])


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["reduce"])
def test_reduction_gives_the_recorded_numbers(case: dict[str, Any]) -> None:
    found = group_aggregate(VALUES, by=BY, reduce=case["reduce"])
    torch.testing.assert_close(found, torch.tensor(case["broadcast"]), rtol=0, atol=1e-6)
    compact = group_aggregate(VALUES, by=BY, reduce=case["reduce"], broadcast=False)
    assert list(compact.shape) == case["compact_shape"]


def test_compact_result_has_a_column_for_each_label_of_the_tensor() -> None:
    compact = group_aggregate(VALUES, by=BY, reduce="sum", broadcast=False)
    assert compact.tolist() == [[3.0, 7.0, 0.0], [13.0, 5.0, 8.0]]
    assert group_aggregate(VALUES, by=BY, reduce="mean", broadcast=False)[0, 2] == 0
    assert group_aggregate(VALUES, by=BY, reduce="max", broadcast=False)[0, 2] == 0


def test_features_are_reduced_one_by_one() -> None:
    values = torch.tensor([[[1.0, 10.0], [3.0, 30.0], [-5.0, 0.0]]])
    by = torch.tensor([[2**62, 2**62, -1]])
    assert group_aggregate(values, by=by, reduce="sum").tolist() == [[[4.0, 40.0], [4.0, 40.0], [-5.0, 0.0]]]
    assert group_aggregate(values, by=by, reduce="min").tolist() == [[[1.0, 10.0], [1.0, 10.0], [-5.0, 0.0]]]


def test_64_bit_labels_are_told_apart() -> None:
    by = torch.tensor([[2**62, 2**62 + 1, 2**62]])
    assert group_aggregate(torch.tensor([[1.0, 2.0, 4.0]]), by=by, reduce="sum").tolist() == [[5.0, 2.0, 5.0]]


def test_mean_spreads_its_gradient_over_the_group() -> None:
    values = torch.tensor([[1.0, 2.0, 6.0]], requires_grad=True)
    group_aggregate(values, by=torch.tensor([[0, 0, 1]]), reduce="mean")[0, 0].backward()
    assert values.grad is not None
    torch.testing.assert_close(values.grad, torch.tensor([[0.5, 0.5, 0.0]]))


@pytest.mark.parametrize(
    ("values", "by", "reduce"),
    [
        (torch.zeros(3), torch.zeros(3), "sum"),
        (torch.zeros(2, 3), torch.zeros(2, 4), "sum"),
        (torch.zeros(2, 3), torch.zeros(2, 3), "median"),
    ],
)
def test_unusable_arguments_are_refused(values: torch.Tensor, by: torch.Tensor, reduce: Any) -> None:
    with pytest.raises(ValueError, match=r"dimension|shape|median"):
        group_aggregate(values, by=by, reduce=reduce)
