"""Matrix product of activations and a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.registry import call, register

register("linear", "cpu", "ninfer_runtime.ops.linear.reference:linear")
register("linear", "cuda", "ninfer_runtime.ops.linear.cuda:linear")
register("stacked_linear", "cpu", "ninfer_runtime.ops.linear.reference:stacked_linear")
register("stacked_linear", "cuda", "ninfer_runtime.ops.linear.cuda:stacked_linear")

Weight = Tensor | PackedWeight
"""A matrix [N, K]: numbers in fp32 or bf16, or a stored format."""


@dataclass(frozen=True, slots=True)
class Product:
    """What `linear` would return: the op that takes it computes it, or what follows from it.

    Attributes:
        x: [T, K].
        weight: [N, K].
    """

    x: Tensor
    weight: Weight

    @property
    def shape(self) -> tuple[int, int]:
        """T and N."""
        return self.x.shape[0], self.weight.shape[0]

    def compute(self) -> Tensor:
        """The tensor [T, N]."""
        return linear(self.x, self.weight)


def linear(x: Tensor, weight: Weight, *, out: Tensor | None = None) -> Tensor:
    """Project rows: ``y[t, n] = Σ_k x[t, k] · weight[n, k]``.

    Products are summed in float32, in any order, and rounded once, to the dtype of the result. A
    packed weight is multiplied as stored: its values are exactly those of its words, apart from one
    rounding of each row's factor where it has one. For such a weight (bf16 apart) `x` may be rounded
    to binary16 after a power of two has been taken out of each row, so that nothing overflows; a
    bf16 element below 2^-14 (times that power) then changes by at most 2^-25. For many rows, as a
    prompt has them, `x` stays as it is and each value of a packed weight is rounded to bf16 once.

    Args:
        x: [T, K], fp32 or bf16, possibly strided.
        weight: [N, K], fp32, bf16 or packed.
        out: [T, N], fp32 or bf16; shares no memory with `x`. By default a new tensor of the
            dtype of `x`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: The device has no kernel for this format or dtype, or not for so many rows
            while a graph is captured.
    """
    _check("linear", x, [weight])
    out = output("linear", out, x, (x.shape[0], weight.shape[0]))
    call("linear", x, weight, out)
    return out


def stacked_linear(x: Tensor, weights: Sequence[Weight], *, out: Tensor | None = None) -> Tensor:
    """Project the same rows with several weights, the results side by side: `linear` with each.

    Args:
        x: [T, K], as for `linear`.
        weights: At least one, [N_i, K] each.
        out: [T, ΣN], as for `linear`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: As for `linear`.
    """
    op = "stacked_linear"
    if not weights:
        raise OpArgumentError(op, "weights", expected="at least one", found=0)
    _check(op, x, weights)
    out = output(op, out, x, (x.shape[0], sum(weight.shape[0] for weight in weights)))
    call(op, x, out, *weights)
    return out


def split_columns(y: Tensor, weights: Sequence[Weight]) -> list[Tensor]:
    """The columns of [T, ΣN] that belong to each weight of `stacked_linear`."""
    if len(weights) == 1:
        return [y]
    bounds = pairwise(accumulate((weight.shape[0] for weight in weights), initial=0))
    return [y[:, begin:end] for begin, end in bounds]


def _check(op: str, x: Tensor, weights: Sequence[Weight]) -> None:
    check_rank(op, "x", x, "T K")
    check_dtype(op, "x", x)
    for weight in weights:
        if isinstance(weight, Tensor):
            check_rank(op, "weight", weight, "N K")
            check_dtype(op, "weight", weight)
        check_shape(op, "weight", weight, (weight.shape[0], x.shape[1]))
