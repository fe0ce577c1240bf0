"""Projections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.linear import linear

Observe = Callable[[Tensor], None]
"""Looks at the input of a projection before it is used."""


class Linear:
    """``y = x · weightᵀ``.

    Args:
        weight: [N, K].
        observe: Is shown every input.
    """

    def __init__(self, weight: Tensor, observe: Observe | None = None) -> None:
        self.weight = weight
        self.observe = observe

    def __call__(self, x: Tensor) -> Tensor:
        """Project `x` [T, K] to [T, N]."""
        if self.observe is not None:
            self.observe(x)
        return linear(x, self.weight)


class StackedLinear:
    """Projections of one input, executed as a single product.

    Args:
        weight: [ΣN, K], the weights one below the other.
        widths: N of each.
        observe: Is shown every input.
    """

    def __init__(
        self, weight: Tensor, widths: Sequence[int], observe: Observe | None = None
    ) -> None:
        self.weight = weight
        self.observe = observe
        self.columns = tuple(pairwise(accumulate(widths, initial=0)))

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Project `x` [T, K]; one strided view [T, N] for each projection."""
        if self.observe is not None:
            self.observe(x)
        y = linear(x, self.weight)
        return tuple(y[:, begin:end] for begin, end in self.columns)
