"""Reductions over the entries of a tensor that carry the same label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from art.errors import DataError

if TYPE_CHECKING:
    import torch

Reduction = Literal["sum", "mean", "var", "std", "count", "min", "max"]


def group_aggregate(
    values: torch.Tensor,
    *,
    by: torch.Tensor,
    reduce: Reduction = "mean",
    eps: float = 1e-8,
    broadcast: bool = True,
) -> torch.Tensor:
    """Reduce values over the positions of a row that have the same label.

    Args:
        values: (B, S, *F)
        by: Labels (B, S), of any type that has an order.
        reduce: What to compute.
        eps: Added to the count where it divides, and to the variance below the root of "std".
        broadcast: Give each position the result of its label.

    Returns:
        (B, S, *F) if broadcast; otherwise (B, K, *F), where K runs over the sorted labels of the whole tensor, with 0
        for a label that a row does not have.

    Raises:
        DataError: Shapes that do not fit together, or an unknown reduction (a ValueError).
    """
    if values.dim() < 2:
        raise DataError(f"values needs at least 2 dimensions, has {values.dim()}")
    if by.shape != values.shape[:2]:
        raise DataError(f"by has the shape {tuple(by.shape)}, values begins with {tuple(values.shape[:2])}")
    if reduce not in get_args(Reduction):
        raise DataError(f"unknown reduction {reduce!r}; known: {', '.join(get_args(Reduction))}")
    batch, length, *features = values.shape
    import torch

    labels, index = torch.unique(by, return_inverse=True)
    num_groups = len(labels)
    first_of_row = torch.arange(batch, device=by.device).unsqueeze(1) * num_groups
    group_of = (first_of_row + index).reshape(-1)  # a number for each pair of row and label
    flat = values.reshape(batch * length, *features)
    groups = _reduce(flat, group_of, batch * num_groups, reduce, eps)
    if broadcast:
        return groups[group_of].reshape(values.shape)
    return groups.reshape(batch, num_groups, *features)


def _reduce(
    values: torch.Tensor, group_of: torch.Tensor, num_groups: int, reduce: Reduction, eps: float
) -> torch.Tensor:
    zeros = values.new_zeros(num_groups, *values.shape[1:])
    if reduce in ("min", "max"):
        target = group_of.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
        return zeros.scatter_reduce(0, target, values, reduce=f"a{reduce}", include_self=False)
    if reduce == "sum":
        return zeros.index_add(0, group_of, values)
    count = zeros.index_add(0, group_of, values.new_ones(values.shape))
    if reduce == "count":
        return count
    divisor = (count + eps).where(count > 0, 1)
    mean = zeros.index_add(0, group_of, values) / divisor
    if reduce == "mean":
        return mean
    variance = zeros.index_add(0, group_of, (values - mean[group_of]) ** 2) / divisor
    return variance if reduce == "var" else (variance + eps).sqrt()
