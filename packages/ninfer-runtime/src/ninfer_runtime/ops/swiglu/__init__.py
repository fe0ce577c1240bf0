"""SiLU-gated product of two projections."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_shape, product_input
from ninfer_runtime.ops.registry import call, register

register("swiglu", "cpu", "ninfer_runtime.ops.swiglu.reference:swiglu")
register("swiglu", "cuda", "ninfer_runtime.ops.swiglu.cuda:swiglu")


def swiglu(gate: Tensor, up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Gate each element: ``silu(gate) · up``, in float32, rounded once to the result's dtype.

    Args:
        gate: Any shape, fp32 or bf16, possibly strided.
        up: As `gate`.
        out: Same shape, fp32 or bf16; may be `gate` or `up`. By default a new tensor of the
            dtype of `gate`; a matrix is made for products (`ProductInput`).

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    check_dtype("swiglu", "gate", gate)
    check_dtype("swiglu", "up", up)
    check_shape("swiglu", "up", up, gate.shape)
    out = product_input("swiglu", out, gate)
    call("swiglu", gate, up, out)
    return out
