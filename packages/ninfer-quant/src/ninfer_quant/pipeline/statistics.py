"""How far stored values are from their source."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10, sqrt

import numpy as np

_BLOCK_ELEMENTS = 1 << 18
"""Values compared at a time, so that intermediate arrays stay small."""


@dataclass(slots=True)
class ErrorSums:
    """Sums over the elements of one parameter.

    Attributes:
        squared_error: Σ (stored - source)².
        squared_value: Σ source².
        max_error: max |stored - source|.
    """

    squared_error: float = 0.0
    squared_value: float = 0.0
    max_error: float = 0.0

    def add(self, values: np.ndarray, stored: np.ndarray) -> None:
        """Count elements.

        Args:
            values: Source values, flat, of any real dtype.
            stored: Decoded values, flat, of the same length.
        """
        for begin in range(0, values.size, _BLOCK_ELEMENTS):
            block = slice(begin, begin + _BLOCK_ELEMENTS)
            source = values[block].astype(np.float32)
            error = stored[block].astype(np.float32) - source
            self.squared_error += _sum_of_squares(error)
            self.squared_value += _sum_of_squares(source)
            self.max_error = max(self.max_error, float(np.abs(error).max()))

    @property
    def relative_frobenius(self) -> float:
        """‖stored - source‖ / ‖source‖; 0 for a parameter of zeros."""
        if self.squared_value == 0:
            return 0.0
        return sqrt(self.squared_error / self.squared_value)

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise in decibels, None where there is no noise or no signal."""
        if self.squared_error == 0 or self.squared_value == 0:
            return None
        return 10 * log10(self.squared_value / self.squared_error)


def _sum_of_squares(values: np.ndarray) -> float:
    # Squares of binary32 may underflow or lose digits against a long sum; binary64 does neither.
    # Not a dot product: BLAS would start threads of its own under every worker.
    wide = values.astype(np.float64)
    np.square(wide, out=wide)
    return float(wide.sum())
