"""Matrix product of activations and a weight."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.registry import call, register

register("linear", "cpu", "ninfer_runtime.ops.linear.reference:linear")


def linear(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Project rows: ``y[t, n] = Σ_k x[t, k] · weight[n, k]``.

    Products are summed in float32, in any order, and rounded once, to the dtype of the result.

    Args:
        x: [T, K], fp32 or bf16, possibly strided.
        weight: [N, K], fp32 or bf16.
        out: [T, N], fp32 or bf16; shares no memory with `x`. By default a new tensor of the
            dtype of `x`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    check_rank("linear", "x", x, "T K")
    check_rank("linear", "weight", weight, "N K")
    check_dtype("linear", "x", x)
    check_dtype("linear", "weight", weight)
    T, K = x.shape
    N = weight.shape[0]
    check_shape("linear", "weight", weight, (N, K))
    out = output("linear", out, x, (T, N))
    call("linear", x, weight, out)
    return out
