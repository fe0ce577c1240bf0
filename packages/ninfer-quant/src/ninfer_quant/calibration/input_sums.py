"""Sums over the rows of one input, from which its statistics are made."""

from __future__ import annotations

import numpy as np

from ninfer_quant.calibration.records import InputStatistics


class InputSums:
    """Sums over rows of width K.

    Args:
        K: The width.
        keeps_hessian: Also sum products between columns.

    Attributes:
        rows: How many rows; with `borrow`, not a whole number of them.
        amax: Largest magnitude, float32.
        squares: Sums of squares, float64 ``[K]``.
        products: Sums of x·xᵀ, float32 ``[K, K]``, if they are kept.
    """

    def __init__(self, K: int, *, keeps_hessian: bool) -> None:
        self.rows = 0.0
        self.amax = np.float32(0)
        self.squares = np.zeros(K)
        self.products = np.zeros((K, K), np.float32) if keeps_hessian else None

    def add(self, x: np.ndarray) -> None:
        """Count rows, float32 ``[T, K]``."""
        self.rows += len(x)
        self.amax = max(self.amax, np.float32(np.abs(x).max()))
        self.squares += np.square(x, dtype=np.float64).sum(axis=0)
        if self.products is not None:
            self.products += x.T @ x

    def borrow(self, other: InputSums, rows: float) -> None:
        """Count so many average rows of another input of the same width."""
        share = rows / other.rows
        self.rows += rows
        self.amax = max(self.amax, other.amax)
        self.squares += other.squares * share
        if self.products is not None and other.products is not None:
            self.products += other.products * np.float32(share)

    def statistics(self) -> InputStatistics:
        """Means over the rows."""
        moment = (self.squares / self.rows).astype(np.float32)
        hessian = None
        if self.products is not None:
            hessian = self.products / np.float32(self.rows)
            # Of both sums this one does not round from row to row.
            np.fill_diagonal(hessian, moment)
        return InputStatistics(self.amax, moment, hessian)
