"""Float32 in, rounded out: what the reference implementations share.

They compute in float32 from the exact values of their inputs and round once, when they store.
"""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.dtypes import DType, bf16_to_float32, float32_to_bf16
from ninfer_runtime.device.tensor import Tensor


def load(tensor: Tensor) -> np.ndarray:
    """The values in float32; a view of the tensor itself if it is fp32."""
    array: np.ndarray = tensor.array
    return bf16_to_float32(array) if tensor.dtype is DType.BF16 else array


def store(out: Tensor, values: np.ndarray) -> None:
    """Write float32 values of the same shape to `out`, rounded to its dtype."""
    out.array[...] = float32_to_bf16(values) if out.dtype is DType.BF16 else values
