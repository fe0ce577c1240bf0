"""Product with the sigmoid of a gate."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.arguments import check_dtype, check_shape, output
from ninfer_runtime.ops.registry import call, register

register("sigmoid_gate", "cpu", "ninfer_runtime.ops.sigmoid_gate.reference:sigmoid_gate")
register("sigmoid_gate", "cuda", "ninfer_runtime.ops.sigmoid_gate.cuda:sigmoid_gate")


def sigmoid_gate(x: Tensor, gate: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Gate each element: ``x · σ(gate)``, in float32, rounded once to the result's dtype.

    Args:
        x: Any shape, fp32 or bf16, possibly strided.
        gate: As `x`.
        out: Same shape, fp32 or bf16; may be `x` or `gate`. By default a new tensor of the dtype
            of `x`.

    Raises:
        OpArgumentError: A shape or dtype is not as above.
    """
    check_dtype("sigmoid_gate", "x", x)
    check_dtype("sigmoid_gate", "gate", gate)
    check_shape("sigmoid_gate", "gate", gate, x.shape)
    out = output("sigmoid_gate", out, x)
    call("sigmoid_gate", x, gate, out)
    return out
