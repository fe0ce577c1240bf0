"""``grouped_absmax``: integer codes and one binary16 scale a group, from the group's maximum."""

from __future__ import annotations

import numpy as np

from ninfer_format import GroupedWords, grouped_absmax
from ninfer_quant.encoders.grouped import CodeRange
from ninfer_quant.methods.chunk_values import chunk_values
from ninfer_quant.methods.grouped_words import (
    half_scale_bound,
    largest_scales,
    words_under,
)
from ninfer_quant.methods.request import MethodJob, MethodRequest, ObjectOutput
from ninfer_quant.methods.target_checks import grouped_format, require_grouped

NAME = "grouped_absmax"


def plan_grouped_absmax(request: MethodRequest) -> MethodJob:
    """Fill an object of a grouped integer format (format specification, section 8.1).

    Raises:
        RecipeError: The target is no matrix of a grouped format, or parameters were given.
    """
    request.refuse_parameters()
    codes = CodeRange.of(require_grouped(NAME, request))

    def produce(output: ObjectOutput) -> None:
        for first, last in request.chunks():
            with request.encoding(first):
                words = _words(request, first, last, codes)
            output.write_rows(first, words)

    return MethodJob(produce)


def _words(request: MethodRequest, first: int, last: int, codes: CodeRange) -> GroupedWords:
    format_name = request.target.format
    if request.device == "cpu":
        # The same words, from arithmetic that is arranged for the caches of a CPU.
        return grouped_absmax(request.matrix(first, last), format_name)
    xp, x = chunk_values(request, first, last)
    return words_under(xp, x, largest_scales(xp, x, codes, format_name), codes)


def error_bound(values: np.ndarray, format_name: str) -> np.ndarray:
    """Largest allowed |stored - source| of each value, from the source alone.

    Args:
        values: Source values, float32 ``[N, K]``.
        format_name: A grouped integer format.

    Returns:
        float32 ``[N, K]``; see `half_scale_bound`.
    """
    return half_scale_bound(values, grouped_format(NAME, format_name))
