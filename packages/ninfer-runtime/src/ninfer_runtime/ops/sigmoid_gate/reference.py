"""NumPy meaning of `sigmoid_gate`."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.activations import sigmoid
from ninfer_runtime.ops.rounding import load, store


def sigmoid_gate(x: Tensor, gate: Tensor, out: Tensor) -> None:
    """See the contract in the package."""
    result = sigmoid(load(gate))
    result *= load(x)
    store(out, result)
