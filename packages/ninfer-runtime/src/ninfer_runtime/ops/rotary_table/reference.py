"""NumPy meaning of `rotary_table`."""

from __future__ import annotations

import numpy as np

from ninfer_runtime.device.tensor import Tensor


def rotary_table(
    positions: Tensor, cos: Tensor, sin: Tensor, *, theta: float, axes: tuple[int, ...]
) -> None:
    """See the contract in the package."""
    pairs = len(axes)
    frequencies = np.power(float(theta), -np.arange(pairs) / pairs)
    angles = positions.array[list(axes)].T * frequencies
    cos.array[...] = np.cos(angles)
    sin.array[...] = np.sin(angles)
