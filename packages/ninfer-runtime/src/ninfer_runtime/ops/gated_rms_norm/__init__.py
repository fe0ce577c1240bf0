"""Root mean square normalisation whose result is gated by SiLU."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_shape, output
from ninfer_runtime.ops.registry import call, register

register("gated_rms_norm", "cpu", "ninfer_runtime.ops.gated_rms_norm.reference:gated_rms_norm")


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, out: Tensor | None = None
) -> Tensor:
    """Normalise and gate each row: ``x / sqrt(mean(x²) + eps) · weight · silu(gate)``.

    The formula is evaluated in float32 and rounded once, to the dtype of the result; the
    normalised value is not rounded before it is multiplied.

    Args:
        x: [..., D], fp32 or bf16, possibly strided.
        gate: As `x`.
        weight: [D], fp32 or bf16.
        eps: Added to the mean of squares; positive.
        out: [..., D], fp32 or bf16; may be `x` or `gate`. By default a new tensor of the dtype
            of `x`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    for argument, tensor in (("x", x), ("gate", gate), ("weight", weight)):
        check_dtype("gated_rms_norm", argument, tensor)
    check_shape("gated_rms_norm", "gate", gate, x.shape)
    check_shape("gated_rms_norm", "weight", weight, x.shape[-1:])
    out = output("gated_rms_norm", out, x)
    call("gated_rms_norm", x, gate, weight, out, eps=eps)
    return out
