"""NumPy meaning of `gated_rms_norm`."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.activations import silu
from ninfer_runtime.ops.rms_norm.reference import inverse_rms
from ninfer_runtime.ops.rounding import load, store


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, out: Tensor, *, eps: float) -> None:
    """See the contract in the package."""
    values = load(x)
    result = values * inverse_rms(values, eps)
    result *= load(weight)
    result *= silu(load(gate))
    store(out, result)
