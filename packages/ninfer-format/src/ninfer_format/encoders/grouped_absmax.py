"""`grouped_absmax`: the reference encoder of grouped integers (formats specification, 8.1).

The scale of a group is its largest magnitude over the largest code, rounded to binary16; codes are
the values times the rounded reciprocal of that scale. All steps round in binary32, and dividing
instead of multiplying by the reciprocal would give other codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.groupwise_int import GroupedWords
from ninfer_format.dtypes import GroupedFormat, get_format
from ninfer_format.encoders.sources import is_floating, to_binary32
from ninfer_format.errors import ArtifactError

_BLOCK_ELEMENTS = 1 << 18
_SMALLEST_SCALE = np.float32(2.0**-24)
"""Value of the binary16 word 0x0001, which stands in for scales that round to zero."""


def grouped_absmax(values: NDArray[Any], format: str) -> GroupedWords:
    """Quantize a matrix to codes and binary16 scales, bit for bit as the specification says.

    Args:
        values: Floating values [N, K].
        format: A grouped-integer format.

    Returns:
        The logical words.

    Raises:
        ArtifactError: `codec`: the source is not a floating matrix, holds a value that is not
            finite in binary32, or needs a scale beyond binary16; `encoding`: not a grouped format.
    """
    grouped = get_format(format)
    if not isinstance(grouped, GroupedFormat):
        raise ArtifactError("encoding", f"{format} is not a grouped-integer format")
    if values.ndim != 2 or not is_floating(values.dtype):
        raise ArtifactError(
            "codec",
            "source cannot be quantized in groups",
            expected="floating values of rank 2",
            found=f"{values.dtype.name} of rank {values.ndim}",
        )
    rows, columns = values.shape
    codes = np.empty((rows, columns), dtype=np.int8)
    scales = np.empty((rows, -(-columns // grouped.group)), dtype=np.uint16)
    step = max(1, _BLOCK_ELEMENTS // max(1, columns))
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        codes[begin:end], scales[begin:end] = _quantize_rows(values[begin:end], grouped, begin)
    return GroupedWords(codes, scales)


def _quantize_rows(
    values: NDArray[Any], grouped: GroupedFormat, first_row: int
) -> tuple[NDArray[np.int8], NDArray[np.uint16]]:
    rows, columns = values.shape
    groups = -(-columns // grouped.group)
    x = to_binary32(values)
    if columns != groups * grouped.group:
        padded = np.zeros((rows, groups * grouped.group), dtype=np.float32)
        padded[:, :columns] = x
        x = padded
    x = x.reshape(rows, groups, grouped.group)
    amax = np.abs(x).max(axis=2)
    _refuse(~np.isfinite(amax), "a source value that is not finite", grouped, first_row)
    with np.errstate(over="ignore"):
        half = (amax / np.float32(grouped.qmax)).astype(np.float16)
    _refuse(np.isinf(half), "a scale beyond binary16", grouped, first_row)
    scale = half.astype(np.float32)
    scale[(scale == 0) & (amax > 0)] = _SMALLEST_SCALE
    inverse = np.zeros_like(scale)
    np.divide(np.float32(1), scale, out=inverse, where=scale > 0)
    q = x * inverse[:, :, np.newaxis]
    np.rint(q, out=q)
    np.clip(q, grouped.qmin, grouped.qmax, out=q)
    codes = q.astype(np.int8).reshape(rows, -1)[:, :columns]
    return codes, scale.astype(np.float16).view(np.uint16)


def _refuse(bad: NDArray[np.bool_], what: str, grouped: GroupedFormat, first_row: int) -> None:
    if bad.any():
        row, group = (int(index) for index in np.argwhere(bad)[0])
        first = group * grouped.group
        raise ArtifactError(
            "codec",
            f"{grouped.name} cannot hold row {first_row + row}, "
            f"columns {first} to {first + grouped.group - 1}: {what}",
        )
