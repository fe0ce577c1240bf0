"""``grouped_gptq``: error feedback under the scales of ``grouped_mse`` with weights.

As ``nvfp4_gptq``: scales first, then the columns in turn, and a row that does not gain keeps plain
rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer_format import GroupedWords
from ninfer_quant.array_module import Array, array_module, to_host
from ninfer_quant.encoders.error_feedback import Feedback, feed_back, feedback_of
from ninfer_quant.encoders.grouped import (
    CodeRange,
    codes_under,
    reciprocals,
    round_to_codes,
    search_scales,
    values_under,
)
from ninfer_quant.methods.calibrated_input import CALIBRATION, calibrated_input
from ninfer_quant.methods.chunk_values import chunk_values
from ninfer_quant.methods.feedback_rows import (
    feedback_blocks,
    rows_that_gain,
    without_dead_columns,
)
from ninfer_quant.methods.grouped_words import group_maxima, largest_scales
from ninfer_quant.methods.request import MethodJob, MethodRequest, ObjectOutput
from ninfer_quant.methods.target_checks import grouped_format, require_grouped

NAME = "grouped_gptq"


def plan_grouped_gptq(request: MethodRequest) -> MethodJob:
    """Fill an object of a grouped integer format by error feedback.

    Raises:
        RecipeError: The target is no matrix of a grouped format, or the parameters are wrong.
        CheckpointError: The calibration does not know the input of the object.
    """
    request.refuse_parameters(CALIBRATION)
    codes = CodeRange.of(require_grouped(NAME, request))
    known = calibrated_input(NAME, request)

    def produce(output: ObjectOutput) -> None:
        xp = array_module(request.device)
        feedback = feedback_of(xp, known.hessian())
        for first, last in feedback_blocks(xp, request):
            output.keep_alive()
            with request.encoding(first):
                x = xp.asarray(chunk_values(request, first, last)[1])
                largest_scales(xp, x, codes, request.target.format)
                words, scales = quantize_rows(xp, x, codes, feedback)
            scale_words = to_host(xp, scales).view(np.uint16)
            output.write_rows(first, GroupedWords(to_host(xp, words), scale_words))

    return MethodJob(produce)


def quantize_rows(xp: Any, x: Array, codes: CodeRange, feedback: Feedback) -> tuple[Array, Array]:
    """Codes and scales of some rows.

    Args:
        xp: Array module.
        x: Values, float32 ``[N, K]``.
        codes: The codes of the format.
        feedback: The inputs.

    Returns:
        int8 ``[N, K]`` and float16 ``[N, groups]``.
    """
    x = without_dead_columns(xp, x, feedback)
    scales = search_scales(xp, x, codes, feedback.diagonal)
    wide = xp.ascontiguousarray(scales.astype(xp.float32).T)
    inverse = xp.ascontiguousarray(reciprocals(xp, scales).T)

    def round_column(k: int, column: Array) -> Array:
        group = k // codes.group
        return round_to_codes(xp, column, inverse[group], codes) * wide[group]

    plain = codes_under(xp, x, scales, codes)
    adjusted = codes_under(xp, feed_back(xp, x, feedback, round_column), scales, codes)
    gains = rows_that_gain(
        xp,
        x,
        values_under(xp, plain, scales, codes),
        values_under(xp, adjusted, scales, codes),
        feedback,
    )
    return xp.where(gains[:, np.newaxis], adjusted, plain), scales


def error_bound(values: np.ndarray, format_name: str) -> np.ndarray:
    """Largest allowed |stored - source| of each value, from the source alone.

    Error feedback moves values, but no code means more than |qmin| times the largest scale.

    Args:
        values: Source values, float32 ``[N, K]``.
        format_name: A grouped integer format.

    Returns:
        float32 ``[N, K]``.
    """
    format_ = grouped_format(NAME, format_name)
    reach = np.float32((1 - format_.qmin / format_.qmax) * (1 + 2**-10))
    return reach * group_maxima(values, format_) - np.float32(format_.qmin * 2.0**-23)
