"""NumPy meaning of `rms_norm`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.rounding import load, store


def rms_norm(x: Tensor, weight: Tensor, out: Tensor, *, eps: float, unit_offset: bool) -> None:
    """See the contract in the package."""
    values, scale = load(x), load(weight)
    if unit_offset:
        scale = scale + np.float32(1)
    store(out, values * inverse_rms(values, eps) * scale)


def inverse_rms(values: np.ndarray, eps: float) -> np.ndarray:
    """``1 / sqrt(mean(values²) + eps)`` over the last axis, which stays with length 1."""
    mean: np.ndarray = np.add.reduce(np.square(values), axis=-1, keepdims=True)
    mean /= np.float32(values.shape[-1])
    mean += np.float32(eps)
    np.sqrt(mean, out=mean)
    np.reciprocal(mean, out=mean)
    return mean
