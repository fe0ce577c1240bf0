"""Causal depthwise convolution over time, with SiLU, carried over calls."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.registry import call, register

register("causal_conv1d", "cpu", "ninfer_runtime.ops.causal_conv1d.reference:causal_conv1d")


def causal_conv1d(
    x: Tensor, weight: Tensor, history: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """Convolve each channel with its own taps: ``y[t] = silu(Σ_j weight[j] · x[t - (J-1) + j])``.

    J is the number of taps. Rows before the first are those of `history`; afterwards `history`
    holds the last J - 1 rows of itself followed by `x`, oldest first, so that any split of a
    sequence into calls gives the same rows. Evaluated in float32, rounded once to the dtype of
    the result.

    Args:
        x: [T, C], fp32 or bf16, possibly strided.
        weight: [J, C], fp32 or bf16; the last tap meets the current row.
        history: [J-1, C], fp32 or bf16, updated in place; zeros at the start of a sequence.
        out: [T, C], fp32 or bf16; shares no memory with `x`. By default a new tensor of the
            dtype of `x`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    op = "causal_conv1d"
    check_rank(op, "x", x, "T C")
    check_rank(op, "weight", weight, "J C")
    for argument, tensor in (("x", x), ("weight", weight), ("history", history)):
        check_dtype(op, argument, tensor)
    T, C = x.shape
    J = weight.shape[0]
    if T < 1 or J < 1:
        raise OpArgumentError(op, "x", expected="T >= 1 rows and J >= 1 taps", found=(T, J))
    check_shape(op, "weight", weight, (J, C))
    check_shape(op, "history", history, (J - 1, C))
    out = output(op, out, x)
    call(op, x, weight, history, out)
    return out
