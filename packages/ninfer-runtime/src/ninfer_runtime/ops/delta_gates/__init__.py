"""Decay and step size of the gated delta rule."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_rank, check_shape
from ninfer_runtime.ops.registry import call, register

register("delta_gates", "cpu", "ninfer_runtime.ops.delta_gates.reference:delta_gates")


def delta_gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``g = -exp(a_log) · softplus(a + dt_bias)`` and ``beta = σ(b)`` in float32.

    Args:
        a: [T, VH], fp32 or bf16, possibly strided.
        b: As `a`.
        a_log: [VH], fp32.
        dt_bias: [VH], fp32.

    Returns:
        The logarithm of the decay, g ≤ 0, and the step size, 0 ≤ beta ≤ 1: each [T, VH], fp32.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    op = "delta_gates"
    check_rank(op, "a", a, "T VH")
    check_dtype(op, "a", a)
    check_dtype(op, "b", b)
    check_shape(op, "b", b, a.shape)
    for argument, tensor in (("a_log", a_log), ("dt_bias", dt_bias)):
        check_dtype(op, argument, tensor, (DType.FP32,))
        check_shape(op, argument, tensor, a.shape[1:])
    g = a.device.empty(a.shape, DType.FP32)
    beta = a.device.empty(a.shape, DType.FP32)
    call(op, a, b, a_log, dt_bias, g, beta)
    return g, beta
