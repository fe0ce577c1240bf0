"""``grouped_absmax``: integer codes and one binary16 scale a group, from the group's maximum."""

from __future__ import annotations

import numpy as np

from ninfer_format import get_format, grouped_absmax
from ninfer_format.dtypes import GroupedFormat
from ninfer_quant.errors import RecipeError
from ninfer_quant.methods.request import MethodJob, MethodRequest, ObjectOutput


def plan_grouped_absmax(request: MethodRequest) -> MethodJob:
    """Fill an object of a grouped integer format (format specification, section 8.1).

    Raises:
        RecipeError: The target is no matrix of a grouped format, or parameters were given.
    """
    request.refuse_parameters()
    target = request.target
    _grouped(target.format)
    if len(target.shape) != 2:
        raise RecipeError(f"method grouped_absmax writes matrices, not shape {list(target.shape)}")

    def produce(output: ObjectOutput) -> None:
        _, K = target.shape
        for first, last in request.chunks():
            values = request.values(first * K, last * K).reshape(-1, K)
            with request.encoding(first):
                words = grouped_absmax(values, target.format)
            output.write_codes(first, words.codes, words.scales)

    return MethodJob(produce)


def error_bound(values: np.ndarray, format_name: str) -> np.ndarray:
    """Largest allowed |stored - source| of each value, from the source alone.

    A code is the nearest multiple of the scale, so the error is at most half a scale; the scale is
    the group's maximum over qmax, rounded to binary16: relatively by 2^-11, below the normal range
    by at most 2^-24, which qmax multiplies where the code is clamped.

    Args:
        values: Source values, float32 ``[N, K]``.
        format_name: A grouped integer format.

    Returns:
        float32 ``[N, K]``.
    """
    format_ = _grouped(format_name)
    N, K = values.shape
    groups = -(-K // format_.group)
    padded = np.zeros((N, groups * format_.group), np.float32)
    padded[:, :K] = np.abs(values)
    maxima = padded.reshape(N, groups, format_.group).max(axis=2)
    half_scale = maxima / np.float32(2 * format_.qmax) * np.float32(1 + 2**-10)
    bounds = half_scale + np.float32((format_.qmax + 1) * 2.0**-24)
    return np.repeat(bounds, format_.group, axis=1)[:, :K]


def _grouped(name: str) -> GroupedFormat:
    format_ = get_format(name)
    if not isinstance(format_, GroupedFormat):
        raise RecipeError(f"method grouped_absmax writes grouped integer formats, not {name}")
    return format_
