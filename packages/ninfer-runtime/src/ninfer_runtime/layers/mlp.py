"""Dense feed-forward layer."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.layers.linear import Linear, Observe
from ninfer_runtime.ops.gated_linear import GatedWeight, gated_linear
from ninfer_runtime.ops.linear import Product


class GatedMLP:
    """``down(silu(gate(x)) · up(x))``.

    Args:
        gate_up: The matrices gate and up, each to the intermediate size.
        down: Projection back to D.
        observe: Is shown every input.
    """

    def __init__(self, gate_up: GatedWeight, down: Linear, observe: Observe | None = None) -> None:
        self.gate_up = gate_up
        self.down = down
        self.observe = observe

    def __call__(self, x: Tensor) -> Product:
        """Map `x` [T, D] to [T, D]; the last product is still to be computed."""
        if self.observe is not None:
            self.observe(x)
        reader = self.down.weight if self.down.observe is None else None
        return self.down.later(gated_linear(x, self.gate_up, reader=reader))
