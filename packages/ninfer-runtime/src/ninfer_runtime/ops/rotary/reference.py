"""NumPy meaning of `rotary`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.rounding import load, store


def rotary(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """See the contract in the package."""
    values = load(x)
    R = cos.shape[1]
    first, second = values[..., :R], values[..., R : 2 * R]
    cosines, sines = cos.array[:, None], sin.array[:, None]
    rotated = np.concatenate(
        (
            first * cosines - second * sines,
            second * cosines + first * sines,
            values[..., 2 * R :],
        ),
        axis=-1,
    )
    store(out, rotated)
