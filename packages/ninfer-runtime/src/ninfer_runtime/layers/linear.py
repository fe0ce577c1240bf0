"""Projections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.linear import Product, Weight, linear, stacked_linear

Observe = Callable[[Tensor], None]
"""Looks at the input of a projection before it is used."""


class Linear:
    """``y = x · weightᵀ``.

    Args:
        weight: [N, K].
        observe: Is shown every input.
    """

    def __init__(self, weight: Weight, observe: Observe | None = None) -> None:
        self.weight = weight
        self.observe = observe

    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Project `x` [T, K] to [T, N], by default of the dtype of `x`."""
        if self.observe is not None:
            self.observe(x)
        return linear(x, self.weight, out=out)

    def later(self, x: Tensor) -> Product:
        """The same for what follows to compute: it may fuse the product with what it does."""
        if self.observe is not None:
            self.observe(x)
        return Product(x, self.weight)


class StackedLinear:
    """Projections of one input, whose results lie side by side in one buffer.

    Args:
        weights: Matrices of ΣN rows in all, one below the other; each is one product. Where one
            ends has nothing to do with where a projection ends.
        widths: N of each projection.
        observe: Is shown every input.

    Raises:
        OpArgumentError: The matrices have another number of rows than the projections.
    """

    def __init__(
        self, weights: Sequence[Weight], widths: Sequence[int], observe: Observe | None = None
    ) -> None:
        self.weights = tuple(weights)
        self.observe = observe
        self.columns = tuple(pairwise(accumulate(widths, initial=0)))
        rows = sum(weight.shape[0] for weight in self.weights)
        if rows != sum(widths):
            raise OpArgumentError(
                "stacked_linear", "weights", expected=f"{sum(widths)} rows", found=rows
            )

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Project `x` [T, K]; one strided view [T, N] for each projection."""
        if self.observe is not None:
            self.observe(x)
        y = stacked_linear(x, self.weights)
        return tuple(y[:, begin:end] for begin, end in self.columns)
