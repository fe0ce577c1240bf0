"""``grouped_mse``: grouped integers whose scales are searched for the least squared error."""

from __future__ import annotations

import numpy as np

from ninfer_quant.encoders.grouped import CodeRange, search_scales
from ninfer_quant.methods.chunk_values import chunk_values
from ninfer_quant.methods.grouped_words import (
    group_maxima,
    largest_scales,
    words_under,
)
from ninfer_quant.methods.request import MethodJob, MethodRequest, ObjectOutput
from ninfer_quant.methods.target_checks import grouped_format, require_grouped

NAME = "grouped_mse"


def plan_grouped_mse(request: MethodRequest) -> MethodJob:
    """Fill an object of a grouped integer format; see `search_scales`.

    Raises:
        RecipeError: The target is no matrix of a grouped format, or parameters were given.
    """
    request.refuse_parameters()
    codes = CodeRange.of(require_grouped(NAME, request))

    def produce(output: ObjectOutput) -> None:
        for first, last in request.chunks():
            with request.encoding(first):
                xp, x = chunk_values(request, first, last)
                largest_scales(xp, x, codes, request.target.format)
                words = words_under(xp, x, search_scales(xp, x, codes), codes)
            output.write_rows(first, words)

    return MethodJob(produce)


def error_bound(values: np.ndarray, format_name: str) -> np.ndarray:
    """Largest allowed |stored - source| of each value, from the source alone.

    The scale is between half the maximum over qmax and all of it; where a value is cut off, the
    error is at most half the maximum, where it is not, at most half a scale.

    Args:
        values: Source values, float32 ``[N, K]``.
        format_name: A grouped integer format.

    Returns:
        float32 ``[N, K]``.
    """
    format_ = grouped_format(NAME, format_name)
    half = group_maxima(values, format_) / np.float32(2) * np.float32(1 + 2**-10)
    return half + np.float32((format_.qmax + 1) * 2.0**-24)
