"""How well two versions of the same numbers agree."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from ninfer_quant.pipeline.statistics import ErrorSums

_BLOCK_ELEMENTS = 1 << 18


@dataclass(slots=True)
class Agreement(ErrorSums):
    """Error sums, and what a cosine needs beside them.

    Attributes:
        product: Σ source · stored.
        squared_stored: Σ stored².
        elements: Number of elements.
    """

    product: float = 0.0
    squared_stored: float = 0.0
    elements: int = 0

    def add(self, values: np.ndarray, stored: np.ndarray) -> None:
        """Count elements; see `ErrorSums.add`."""
        # Not super(): dataclass(slots=True) makes a new class that super() does not know.
        ErrorSums.add(self, values, stored)
        self.elements += values.size
        for begin in range(0, values.size, _BLOCK_ELEMENTS):
            block = slice(begin, begin + _BLOCK_ELEMENTS)
            wide = stored[block].astype(np.float64)
            self.product += float((values[block].astype(np.float64) * wide).sum())
            self.squared_stored += float(np.square(wide).sum())

    def merge(self, other: Agreement) -> None:
        """Count the elements of another one too."""
        self.squared_error += other.squared_error
        self.squared_value += other.squared_value
        self.max_error = max(self.max_error, other.max_error)
        self.product += other.product
        self.squared_stored += other.squared_stored
        self.elements += other.elements

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between both as vectors; None if one is zero and the other is not.

        Two vectors of zeros agree: 1.
        """
        if self.squared_value == 0 or self.squared_stored == 0:
            return 1.0 if self.squared_value == self.squared_stored else None
        cosine = self.product / sqrt(self.squared_value) / sqrt(self.squared_stored)
        return max(-1.0, min(1.0, cosine))
