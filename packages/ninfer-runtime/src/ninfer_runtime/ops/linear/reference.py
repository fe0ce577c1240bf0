"""NumPy meaning of `linear`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.rounding import load, store


def linear(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """See the contract in the package."""
    if out.dtype is DType.FP32:
        np.matmul(load(x), load(weight).T, out=out.array)
    else:
        store(out, load(x) @ load(weight).T)
