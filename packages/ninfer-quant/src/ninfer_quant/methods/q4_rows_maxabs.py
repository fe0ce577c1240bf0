"""``q4_rows_maxabs``: 4-bit codes with a scale for 32 columns, for tables of many short rows."""

from __future__ import annotations

import numpy as np

from ninfer_format import GroupedWords, q4_rows_maxabs
from ninfer_format.dtypes import Q4_G32_FP16_ROWS
from ninfer_quant.encoders.grouped import CodeRange
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.chunk_values import chunk_values
from ninfer_quant.methods.grouped_words import (
    half_scale_bound,
    largest_scales,
    words_under,
)
from ninfer_quant.methods.request import MethodJob, MethodRequest, ObjectOutput
from ninfer_quant.methods.target_checks import require_format

NAME = "q4_rows_maxabs"
_FORMAT = Q4_G32_FP16_ROWS
# The format also has code -8, this method is symmetric.
_CODES = CodeRange(_FORMAT.group, -_FORMAT.qmax, _FORMAT.qmax)


def plan_q4_rows_maxabs(request: MethodRequest) -> MethodJob:
    """Fill an object of q4_g32_fp16_rows (format specification, section 8.2).

    Raises:
        RecipeError: The target is no matrix of this format with whole groups, or parameters were
            given.
    """
    request.refuse_parameters()
    require_format(NAME, request, _FORMAT.name)
    K = request.target.shape[1]
    if K % _FORMAT.group:
        raise RecipeError(f"{_FORMAT.name} stores multiples of {_FORMAT.group} columns, not {K}")

    def produce(output: ObjectOutput) -> None:
        for first, last in request.chunks():
            with request.encoding(first):
                words = _words(request, first, last)
            output.write_rows(first, words)

    return MethodJob(produce)


def _words(request: MethodRequest, first: int, last: int) -> GroupedWords:
    if request.device == "cpu":
        # The same words, from arithmetic that is arranged for the caches of a CPU.
        return q4_rows_maxabs(request.matrix(first, last))
    xp, x = chunk_values(request, first, last)
    return words_under(xp, x, largest_scales(xp, x, _CODES, _FORMAT.name), _CODES)


def error_bound(values: np.ndarray, format_name: str) -> np.ndarray:
    """Largest allowed |stored - source| of each value, from the source alone.

    Args:
        values: Source values, float32 ``[N, K]``.
        format_name: ``q4_g32_fp16_rows``.

    Returns:
        float32 ``[N, K]``; see `half_scale_bound`.
    """
    if format_name != _FORMAT.name:
        raise RecipeError(f"method {NAME} writes {_FORMAT.name}, not {format_name}")
    return half_scale_bound(values, _FORMAT)
