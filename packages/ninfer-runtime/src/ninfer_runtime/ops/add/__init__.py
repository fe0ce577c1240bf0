"""Sum of two tensors, as a residual connection needs it."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_shape, output
from ninfer_runtime.ops.registry import call, register

register("add", "cpu", "ninfer_runtime.ops.add.reference:add")


def add(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Add element by element in float32, rounded once to the dtype of the result.

    Args:
        x: Any shape, fp32 or bf16, possibly strided.
        y: As `x`.
        out: Same shape, fp32 or bf16; may be `x` or `y`. By default a new tensor of the dtype
            of `x`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    check_dtype("add", "x", x)
    check_dtype("add", "y", y)
    check_shape("add", "y", y, x.shape)
    out = output("add", out, x)
    call("add", x, y, out)
    return out
