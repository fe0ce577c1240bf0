"""NumPy meaning of `add_rms_norm`."""

from __future__ import annotations

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.add.reference import add
from ninfer_runtime.ops.linear import Weight
from ninfer_runtime.ops.linear.reference import linear
from ninfer_runtime.ops.rms_norm.reference import rms_norm


def add_rms_norm(
    x: Tensor, y: Tensor, weight: Tensor, out: Tensor, *, eps: float, unit_offset: bool
) -> None:
    """See the contract in the package."""
    add(x, y, x)
    rms_norm(x, weight, out, eps=eps, unit_offset=unit_offset)


def add_product(
    x: Tensor,
    rows: Tensor,
    matrix: Weight,
    weight: Tensor,
    out: Tensor,
    *,
    eps: float,
    unit_offset: bool,
) -> None:
    """See the contract of `add_product_rms_norm` in the package."""
    y = x.device.empty(x.shape, DType.FP32)
    linear(rows, matrix, y)
    add_rms_norm(x, y, weight, out, eps=eps, unit_offset=unit_offset)
