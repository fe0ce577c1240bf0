"""What the methods of grouped integers share: words of chunks, and how far they may be off."""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer_format import GroupedWords
from ninfer_format.dtypes import GroupedFormat
from ninfer_format.errors import ArtifactError
from ninfer_quant.array_module import Array, to_host
from ninfer_quant.encoders.grouped import CodeRange, absmax_scales, codes_under


def largest_scales(xp: Any, x: Array, codes: CodeRange, format_name: str) -> Array:
    """Scales from the largest magnitudes, float16 ``[N, groups]``.

    Raises:
        ArtifactError: `codec`: one is beyond binary16.
    """
    scales = absmax_scales(xp, x, codes)
    infinite = xp.isinf(scales)
    if bool(infinite.any()):
        row, group = divmod(int(infinite.argmax()), scales.shape[1])
        first = group * codes.group
        raise ArtifactError(
            "codec",
            f"{format_name} cannot hold row {row}, columns {first} to "
            f"{first + codes.group - 1}: a scale beyond binary16",
        )
    return scales


def words_under(xp: Any, x: Array, scales: Array, codes: CodeRange) -> GroupedWords:
    """Words of rows whose scales are chosen, on the host."""
    found = codes_under(xp, x, scales, codes)
    return GroupedWords(to_host(xp, found), to_host(xp, scales).view(np.uint16))


def half_scale_bound(values: np.ndarray, format_: GroupedFormat) -> np.ndarray:
    """Largest |stored - source| of codes that are the nearest under the scale of the maximum.

    The error is at most half a scale; the scale is the group's maximum over qmax, rounded to
    binary16: relatively by 2^-11, below the normal range by at most 2^-24, which qmax multiplies
    where the code is clamped.

    Args:
        values: Source values, float32 ``[N, K]``.
        format_: Their format.

    Returns:
        float32 ``[N, K]``.
    """
    half_scale = group_maxima(values, format_) / np.float32(2 * format_.qmax)
    return half_scale * np.float32(1 + 2**-10) + np.float32((format_.qmax + 1) * 2.0**-24)


def group_maxima(values: np.ndarray, format_: GroupedFormat) -> np.ndarray:
    """The largest magnitude of the group of each value: float32 ``[N, K]``."""
    N, K = values.shape
    groups = -(-K // format_.group)
    padded = np.zeros((N, groups * format_.group), np.float32)
    padded[:, :K] = np.abs(values)
    maxima: np.ndarray = padded.reshape(N, groups, format_.group).max(axis=2)
    return np.repeat(maxima, format_.group, axis=1)[:, :K]
