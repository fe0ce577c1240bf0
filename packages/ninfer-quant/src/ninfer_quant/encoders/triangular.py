"""Cholesky factors and inverses in place, for matrices of which a second copy would be too much.

Second moments of inputs of width 17,408 are 2.4 GB in binary64. The functions of NumPy and CuPy
copy their arguments several times; these work block by block and need a few block columns beside
the matrix. Their cost is in products of matrices, as there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer_quant.array_module import Array

BLOCK = 512
"""Rows and columns of a block."""


def cholesky_in_place(xp: Any, matrix: Array) -> bool:
    """Replace a symmetric matrix A by its lower Cholesky factor L, A = L·Lᵀ.

    Args:
        xp: Array module.
        matrix: float64 ``[K, K]``; only what is on and below the diagonal is read.

    Returns:
        Whether A is positive definite. If not, what the matrix holds has no meaning.
    """
    K = len(matrix)
    for begin in range(0, K, BLOCK):
        end = min(begin + BLOCK, K)
        if begin:
            matrix[begin:, begin:end] -= matrix[begin:, :begin] @ matrix[begin:end, :begin].T
        try:
            pivot = xp.linalg.cholesky(matrix[begin:end, begin:end])
        except np.linalg.LinAlgError:
            return False
        # Some libraries raise, others return what is not finite.
        if not bool(xp.isfinite(pivot).all()):
            return False
        matrix[begin:end, begin:end] = pivot
        matrix[begin:end, end:] = 0
        if end < K:
            matrix[end:, begin:end] = matrix[end:, begin:end] @ _inverse(xp, pivot).T
    return True


def invert_lower_in_place(xp: Any, matrix: Array) -> None:
    """Replace a lower triangular matrix by its inverse.

    Args:
        xp: Array module.
        matrix: float64 ``[K, K]`` with zeros above the diagonal and none on it.
    """
    K = len(matrix)
    for begin in reversed(range(0, K, BLOCK)):
        end = min(begin + BLOCK, K)
        inverse = _inverse(xp, matrix[begin:end, begin:end])
        # From the last rows upwards, since each block needs those above it as they were.
        for top in reversed(range(end, K, BLOCK)):
            bottom = min(top + BLOCK, K)
            below = matrix[top:bottom, end:bottom] @ matrix[end:bottom, begin:end]
            matrix[top:bottom, begin:end] = -(below @ inverse)
        matrix[begin:end, begin:end] = inverse


def _inverse(xp: Any, lower: Array) -> Array:
    return xp.tril(xp.linalg.inv(lower))
