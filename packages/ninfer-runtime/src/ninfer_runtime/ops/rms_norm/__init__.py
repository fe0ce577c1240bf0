"""Root mean square normalisation over the last axis."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_shape, product_input
from ninfer_runtime.ops.registry import call, register

register("rms_norm", "cpu", "ninfer_runtime.ops.rms_norm.reference:rms_norm")
register("rms_norm", "cuda", "ninfer_runtime.ops.rms_norm.cuda:rms_norm")


def rms_norm(
    x: Tensor, weight: Tensor, *, eps: float, unit_offset: bool = False, out: Tensor | None = None
) -> Tensor:
    """Normalise each row: ``x / sqrt(mean(x²) + eps) · w``, with w = weight or 1 + weight.

    The formula is evaluated in float32 and rounded once, to the dtype of the result.

    Args:
        x: [..., D], fp32 or bf16, possibly strided.
        weight: [D], fp32 or bf16.
        eps: Added to the mean of squares; positive.
        unit_offset: Multiply with 1 + weight in place of weight.
        out: [..., D], fp32 or bf16; may be `x` itself. By default a new tensor of the dtype of `x`;
            a matrix is made for products (`ProductInput`).

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    check_dtype("rms_norm", "x", x)
    check_dtype("rms_norm", "weight", weight)
    check_shape("rms_norm", "weight", weight, x.shape[-1:])
    out = product_input("rms_norm", out, x)
    call("rms_norm", x, weight, out, eps=eps, unit_offset=unit_offset)
    return out
