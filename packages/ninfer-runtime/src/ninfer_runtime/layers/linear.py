"""Projections."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.linear import linear


class Linear:
    """``y = x · weightᵀ``.

    Args:
        weight: [N, K].
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """Project `x` [T, K] to [T, N]."""
        return linear(x, self.weight)


class StackedLinear:
    """Projections of one input, executed as a single product.

    Args:
        weight: [ΣN, K], the weights one below the other.
        widths: N of each.
    """

    def __init__(self, weight: Tensor, widths: Sequence[int]) -> None:
        self.weight = weight
        self.columns = tuple(pairwise(accumulate(widths, initial=0)))

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Project `x` [T, K]; one strided view [T, N] for each projection."""
        y = linear(x, self.weight)
        return tuple(y[:, begin:end] for begin, end in self.columns)
