"""Dense feed-forward layer."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.layers.linear import Linear, StackedLinear
from ninfer_runtime.ops.linear import Product
from ninfer_runtime.ops.swiglu import swiglu


class GatedMLP:
    """``down(silu(gate(x)) · up(x))``.

    Args:
        gate_up: The projections gate and up, each to the intermediate size.
        down: Projection back to D.
    """

    def __init__(self, gate_up: StackedLinear, down: Linear) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, x: Tensor) -> Product:
        """Map `x` [T, D] to [T, D]; the last product is still to be computed."""
        gate, up = self.gate_up(x)
        return self.down.later(swiglu(gate, up))
