"""What the methods with error feedback share: rows adjusted so that errors make up for each other.

Rows do not depend on each other, but how a library multiplies matrices depends on how many rows
there are. The rows of an object are therefore cut into blocks that the object alone determines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ninfer_quant.array_module import Array, is_numpy
from ninfer_quant.encoders.error_feedback import Feedback, weighted_errors
from ninfer_quant.methods.request import MethodRequest

_CPU_ROWS = 256
_GPU_ROWS = 8192
"""Rows of a block: enough that a step over one column is worth its call."""


def feedback_blocks(xp: Any, request: MethodRequest) -> Iterator[tuple[int, int]]:
    """Cut the rows of an object; the blocks are whole blocks of every layout but perhaps the last.

    The size of a chunk does not count here.
    """
    rows, _ = request.target.matrix_shape
    step = _CPU_ROWS if is_numpy(xp) else _GPU_ROWS
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)


def rows_that_gain(xp: Any, x: Array, nearest: Array, adjusted: Array, feedback: Feedback) -> Array:
    """Which rows error feedback has made better than rounding each value to the nearest number.

    Args:
        xp: Array module.
        x: What was to be stored, float32 ``[N, K]``.
        nearest: What plain rounding stores.
        adjusted: What is stored after error feedback.
        feedback: The inputs.

    Returns:
        bool ``[N]``.
    """
    before = weighted_errors(xp, nearest - x, feedback)
    return weighted_errors(xp, adjusted - x, feedback) < before


def without_dead_columns(xp: Any, x: Array, feedback: Feedback) -> Array:
    """A copy with zeros in the columns that no input used."""
    return xp.where(feedback.is_dead[np.newaxis], np.float32(0), x)
