"""NumPy meaning of `add_rms_norm`."""

from __future__ import annotations

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.add.reference import add
from ninfer_runtime.ops.rms_norm.reference import rms_norm


def add_rms_norm(
    x: Tensor, y: Tensor, weight: Tensor, out: Tensor, *, eps: float, unit_offset: bool
) -> None:
    """See the contract in the package."""
    add(x, y, x)
    rms_norm(x, weight, out, eps=eps, unit_offset=unit_offset)
