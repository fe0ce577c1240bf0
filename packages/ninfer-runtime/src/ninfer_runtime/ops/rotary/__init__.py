"""Rotation of the leading components of each head."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import OpArgumentError
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape, output
from ninfer_runtime.ops.registry import call, register

register("rotary", "cpu", "ninfer_runtime.ops.rotary.reference:rotary")


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Rotate pairs of components (split halves): pair r is made of components r and r + R.

    ``(a, b) → (a·cos − b·sin, b·cos + a·sin)`` for the first 2R components of each head; the
    others pass unchanged. Evaluated in float32, rounded once to the dtype of the result.

    Args:
        x: [T, H, HD], fp32 or bf16, possibly strided.
        cos: [T, R], fp32, from `rotary_table`; 2R ≤ HD.
        sin: As `cos`.
        out: [T, H, HD], fp32 or bf16; may be `x` itself. By default a new tensor of the dtype
            of `x`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    check_rank("rotary", "x", x, "T H HD")
    check_dtype("rotary", "x", x)
    check_rank("rotary", "cos", cos, "T R")
    check_dtype("rotary", "cos", cos, (DType.FP32,))
    check_dtype("rotary", "sin", sin, (DType.FP32,))
    T, _, HD = x.shape
    R = cos.shape[1]
    check_shape("rotary", "cos", cos, (T, R))
    check_shape("rotary", "sin", sin, (T, R))
    if 2 * R > HD:
        raise OpArgumentError("rotary", "cos", expected=f"at most {HD // 2} pairs", found=R)
    out = output("rotary", out, x)
    call("rotary", x, cos, sin, out)
    return out
