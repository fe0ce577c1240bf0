"""The transform that spreads the outliers of a key or value over its whole row before coding.

``H[i][j] = (-1)^popcount(i & j) / 16`` of order 256: symmetric and orthonormal, so that it is its own
inverse and keeps dot products.
"""

from __future__ import annotations

import numpy as np

ORDER = 256


def transform_rows(rows: np.ndarray) -> np.ndarray:
    """Multiply rows [..., 256] by H, in their own float type.

    The sums are taken pair by pair in the order of the device's kernels: both give the same bits.
    """
    values = rows.copy()
    distance = 1
    while distance < ORDER:
        pairs = values.reshape(*rows.shape[:-1], ORDER // (2 * distance), 2, distance)
        first, second = pairs[..., 0, :].copy(), pairs[..., 1, :].copy()
        np.add(first, second, out=pairs[..., 0, :])
        np.subtract(first, second, out=pairs[..., 1, :])
        distance *= 2
    values *= rows.dtype.type(1 / ORDER**0.5)
    return values
