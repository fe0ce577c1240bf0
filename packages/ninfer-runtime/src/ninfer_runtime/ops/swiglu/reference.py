"""NumPy meaning of `swiglu`."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.activations import silu
from ninfer_runtime.ops.rounding import load, store


def swiglu(gate: Tensor, up: Tensor, out: Tensor) -> None:
    """See the contract in the package."""
    result = silu(load(gate))
    result *= load(up)
    store(out, result)
