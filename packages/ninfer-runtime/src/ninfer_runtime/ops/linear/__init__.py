"""Matrix product of activations and a weight."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.registry import call, register

register("linear", "cpu", "ninfer_runtime.ops.linear.reference:linear")
register("linear", "cuda", "ninfer_runtime.ops.linear.cuda:linear")


def linear(x: Tensor, weight: Tensor | PackedWeight, *, out: Tensor | None = None) -> Tensor:
    """Project rows: ``y[t, n] = Σ_k x[t, k] · weight[n, k]``.

    Products are summed in float32, in any order, and rounded once, to the dtype of the result. A
    packed weight is multiplied as stored: its values are exactly those of its words, apart from one
    rounding of each row's factor where it has one. For such a weight (bf16 apart) `x` may be rounded
    to binary16 after a power of two has been taken out of each row, so that nothing overflows; a
    bf16 element below 2^-14 (times that power) then changes by at most 2^-25.

    Args:
        x: [T, K], fp32 or bf16, possibly strided.
        weight: [N, K], fp32, bf16 or packed.
        out: [T, N], fp32 or bf16; shares no memory with `x`. By default a new tensor of the
            dtype of `x`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
        UnsupportedOpError: The device has no kernel for this format, dtype or number of rows.
    """
    check_rank("linear", "x", x, "T K")
    check_dtype("linear", "x", x)
    T, K = x.shape
    N = weight.shape[0]
    if isinstance(weight, Tensor):
        check_rank("linear", "weight", weight, "N K")
        check_dtype("linear", "weight", weight)
    check_shape("linear", "weight", weight, (N, K))
    out = output("linear", out, x, (T, N))
    call("linear", x, weight, out)
    return out
