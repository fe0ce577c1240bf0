"""NumPy meaning of `linear`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.linear import Weight, split_columns
from ninfer_runtime.ops.linear.weight_records import decode_records
from ninfer_runtime.ops.rounding import load, store


def linear(x: Tensor, weight: Weight, out: Tensor) -> None:
    """See the contract in the package."""
    values = values_of(weight)
    if out.dtype is DType.FP32:
        np.matmul(load(x), values.T, out=out.array)
    else:
        store(out, load(x) @ values.T)


def stacked_linear(x: Tensor, out: Tensor, *weights: Weight) -> None:
    """See the contract in the package."""
    for weight, columns in zip(weights, split_columns(out, weights), strict=True):
        linear(x, weight, columns)


def values_of(weight: Weight) -> np.ndarray:
    """The values of a weight on the host, [N, K] in float32."""
    if isinstance(weight, Tensor):
        return load(weight)
    return decode_records(weight.record_format, weight.data, weight.row_scale, weight.shape)
