"""``nvfp4_gptq``: error feedback under the scales of ``nvfp4_mse`` with weights.

Divisor and scales are chosen first, from the values as they are; then every column is rounded in
turn, and the columns after it make up for its error as far as the calibrated inputs allow. A row
for which that is not better than plain rounding keeps plain rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer_quant.array_module import Array, array_module
from ninfer_quant.encoders.error_feedback import Feedback, feed_back, feedback_of
from ninfer_quant.encoders.nvfp4 import (
    ABSMAX_RANGE,
    GROUP,
    best_of_all,
    codes_under,
    scale_values,
    search_scales,
    values_under,
)
from ninfer_quant.encoders.small_floats import nearest_e2m1
from ninfer_quant.methods.calibrated_input import CALIBRATION, calibrated_input
from ninfer_quant.methods.chunk_values import chunk_values
from ninfer_quant.methods.feedback_rows import (
    feedback_blocks,
    rows_that_gain,
    without_dead_columns,
)
from ninfer_quant.methods.nvfp4_words import nvfp4_words, object_divisor
from ninfer_quant.methods.request import MethodJob, MethodRequest, ObjectOutput
from ninfer_quant.methods.target_checks import require_nvfp4

NAME = "nvfp4_gptq"


def plan_nvfp4_gptq(request: MethodRequest) -> MethodJob:
    """Fill an nvfp4 object by error feedback (recipes, section 9).

    Raises:
        RecipeError: The target is no nvfp4 matrix, or the parameters are wrong.
        CheckpointError: The calibration does not know the input of the object.
    """
    request.refuse_parameters(CALIBRATION)
    require_nvfp4(NAME, request)
    known = calibrated_input(NAME, request)

    def produce(output: ObjectOutput) -> None:
        xp = array_module(request.device)
        divisor = object_divisor(request, output, ABSMAX_RANGE)
        feedback = feedback_of(xp, known.hessian())
        for first, last in feedback_blocks(xp, request):
            output.keep_alive()
            with request.encoding(first):
                values = chunk_values(request, first, last)[1]
                codes, scales = quantize_rows(xp, xp.asarray(values) * divisor, feedback)
            output.write_rows(first, nvfp4_words(xp, codes, scales, divisor))

    return MethodJob(produce)


def quantize_rows(xp: Any, x: Array, feedback: Feedback) -> tuple[Array, Array]:
    """Codes and scales of some rows.

    Args:
        xp: Array module.
        x: Values times divisor, float32 ``[N, K]``.
        feedback: The inputs.

    Returns:
        uint8 ``[N, K]`` and ``[N, K / 16]``.
    """
    x = without_dead_columns(xp, x, feedback)
    words = search_scales(xp, x, best_of_all, feedback.diagonal)
    scales = xp.ascontiguousarray(scale_values(xp, words).T)

    def round_column(k: int, column: Array) -> Array:
        scale = scales[k // GROUP]
        nearest = nearest_e2m1(xp, xp.abs(column) / xp.where(scale == 0, np.float32(1), scale))
        return xp.copysign(nearest * scale, column)

    plain = codes_under(xp, x, words)
    adjusted = codes_under(xp, feed_back(xp, x, feedback, round_column), words)
    stored = values_under(xp, adjusted, words)
    gains = rows_that_gain(xp, x, values_under(xp, plain, words), stored, feedback)
    # Verification relies on it: only under the coarse scales of tiny values can it be otherwise.
    gains &= (xp.abs(stored) <= 2 * _maxima(xp, x)).all(axis=1)
    return xp.where(gains[:, np.newaxis], adjusted, plain), words


def error_bound(values: np.ndarray, format_name: str) -> np.ndarray:
    """Largest allowed |stored - source| of each value, from the source alone.

    Error feedback moves values, but what is stored is at most twice the block's maximum.

    Args:
        values: Source values, float32 ``[N, K]``.
        format_name: ``nvfp4``.

    Returns:
        float32 ``[N, K]``.
    """
    bounds: np.ndarray = _maxima(np, values)
    return bounds * np.float32(3 + 2**-20) + np.float32(2.0**-148)


def _maxima(xp: Any, x: Array) -> Array:
    """The largest magnitude of the block of each value: float32 ``[N, K]``."""
    blocks = xp.abs(x).reshape(len(x), -1, GROUP)
    return xp.repeat(blocks.max(axis=2), GROUP, axis=1)
