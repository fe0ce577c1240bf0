"""Error feedback: rounding a matrix column by column, later columns making up for earlier ones.

With the second moments H of the inputs, the error that rounding W to Q makes in the products is
``(W - Q) · H · (W - Q)ᵀ``, summed over rows. Once a column is rounded, the best that the columns
after it can do about its error is known from the Cholesky factor of the inverse of H (recipes,
section 9, ``nvfp4_gptq``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from ninfer_quant.array_module import Array
from ninfer_quant.encoders.triangular import cholesky_in_place, invert_lower_in_place
from ninfer_quant.errors import ConversionError

PANEL = 128
"""Columns whose errors are carried to the rest of the matrix in one product."""
_DAMPING = 0.01
"""What is added to the diagonal, as a part of its mean."""
_MOST_ATTEMPTS = 10
"""How often damping is doubled where H is not positive definite in binary64."""
_PREPARATION = Lock()
"""One worker at a time makes a factor: that takes 8·K² bytes beside what stays, and all processors."""

RoundColumn = Callable[[int, Array], Array]
"""The values that a column (its index, float32 ``[N]``) gets."""


@dataclass(frozen=True, eq=False, slots=True)
class Feedback:
    """What error feedback needs to know of the inputs, of width K.

    Attributes:
        hessian: Second moments, float32 ``[K, K]``; dead columns have the mean of the others on
            the diagonal, whatever the scale of the moments.
        factor: Upper Cholesky factor U of the inverse of the damped moments, UᵀU, float32
            ``[K, K]``.
        is_dead: Columns that the inputs never used, bool ``[K]``; their weights count as 0.
    """

    hessian: Array
    factor: Array
    is_dead: Array

    @property
    def diagonal(self) -> Array:
        """Weights of squared errors where columns are looked at one by one: float32 ``[K]``."""
        return self.hessian.diagonal()


def feedback_of(xp: Any, hessian: np.ndarray) -> Feedback:
    """Prepare error feedback.

    Args:
        xp: Array module.
        hessian: Second moments of the inputs, float32 ``[K, K]``, to any scale; kept if no column
            is dead.

    Raises:
        ConversionError: They are not positive definite, even with much damping.
    """
    moments = xp.asarray(hessian)
    diagonal = moments.diagonal()
    is_dead = diagonal == 0
    if bool(is_dead.any()):
        live = int((~is_dead).sum())
        typical = float(diagonal.sum(dtype=xp.float64)) / live if live else 1.0
        moments = moments.copy()
        _add_to_diagonal(moments, is_dead.astype(xp.float32) * np.float32(typical))
    with _PREPARATION:
        factor = _inverse_factor(xp, moments)
    return Feedback(moments, factor, is_dead)


def _inverse_factor(xp: Any, moments: Array) -> Array:
    """Upper U with UᵀU the inverse of the damped moments, float32 ``[K, K]``."""
    mean = float(moments.diagonal().mean(dtype=xp.float64))
    damping = _DAMPING
    for _ in range(_MOST_ATTEMPTS):
        # Backwards, moments = R·Rᵀ with an upper R, and then U is the inverse of R.
        matrix = moments[::-1, ::-1].astype(xp.float64, order="C")
        _add_to_diagonal(matrix, damping * mean)
        if cholesky_in_place(xp, matrix):
            invert_lower_in_place(xp, matrix)
            return matrix[::-1, ::-1].astype(xp.float32, order="C")
        damping *= 2
    raise ConversionError(
        "the second moments of the calibration are not positive definite, even with damping "
        f"{damping / 2:g}",
        hint="calibrate with more text",
    )


def _add_to_diagonal(matrix: Array, values: Array | float) -> None:
    matrix.reshape(-1)[:: len(matrix) + 1] += values


def feed_back(xp: Any, x: Array, feedback: Feedback, round_column: RoundColumn) -> Array:
    """Adjust a matrix so that rounding each of its columns makes up for the errors before it.

    Args:
        xp: Array module.
        x: Values float32 ``[N, K]`` with zeros in dead columns.
        feedback: The inputs.
        round_column: How columns will be rounded.

    Returns:
        The values that are to be rounded, float32 ``[N, K]``.
    """
    columns = xp.array(x.T, order="C")
    K = len(columns)
    factor = feedback.factor
    pivots = factor.diagonal().tolist()
    for begin in range(0, K, PANEL):
        end = min(begin + PANEL, K)
        errors = xp.empty((end - begin, columns.shape[1]), xp.float32)
        for k in range(begin, end):
            error = errors[k - begin]
            xp.subtract(columns[k], round_column(k, columns[k]), out=error)
            error /= np.float32(pivots[k])
            columns[k + 1 : end] -= factor[k, k + 1 : end, np.newaxis] * error
        if end < K:
            columns[end:] -= factor[begin:end, end:].T @ errors
    return xp.ascontiguousarray(columns.T)


def weighted_errors(xp: Any, errors: Array, feedback: Feedback) -> Array:
    """``e · H · eᵀ`` of each row: float32 ``[N, K]`` to float64 ``[N]``."""
    return ((errors @ feedback.hessian) * errors).sum(axis=1, dtype=xp.float64)
