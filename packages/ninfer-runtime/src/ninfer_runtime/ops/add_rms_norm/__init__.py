"""A residual sum and the norm of it, as between two parts of a block."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.registry import call, register

register("add_rms_norm", "cpu", "ninfer_runtime.ops.add_rms_norm.reference:add_rms_norm")
register("add_rms_norm", "cuda", "ninfer_runtime.ops.add_rms_norm.cuda:add_rms_norm")


def add_rms_norm(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    *,
    eps: float,
    unit_offset: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Add `y` to `x` in place, then normalise each row of the sum.

    ``x ← x + y``, rounded once to the dtype of `x`; the result is
    ``x / sqrt(mean(x²) + eps) · w`` of the rounded sum, with w = weight or 1 + weight, evaluated in
    float32 and rounded once to the dtype of the result.

    Args:
        x: [T, D], fp32 or bf16; holds the sum afterwards.
        y: [T, D], fp32 or bf16.
        weight: [D], fp32 or bf16.
        eps: Added to the mean of squares; positive.
        unit_offset: Multiply with 1 + weight in place of weight.
        out: [T, D], fp32 or bf16; shares no memory with `x`, may be `y`. By default a new tensor
            of the dtype of `x`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    op = "add_rms_norm"
    check_rank(op, "x", x, "T D")
    for argument, tensor in (("x", x), ("y", y), ("weight", weight)):
        check_dtype(op, argument, tensor)
    check_shape(op, "y", y, x.shape)
    check_shape(op, "weight", weight, x.shape[-1:])
    out = output(op, out, x)
    call(op, x, y, weight, out, eps=eps, unit_offset=unit_offset)
    return out
