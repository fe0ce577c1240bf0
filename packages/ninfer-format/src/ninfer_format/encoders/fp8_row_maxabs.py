"""`fp8_row_maxabs`: the reference encoder of fp8_e4m3fn_row_bf16 (formats specification, 8.3).

The scale of a row is its largest magnitude over 448, the largest E4M3FN number, rounded to bf16;
codes are the values times the rounded reciprocal of that scale. Rows whose largest magnitude is
below about 448 * 2^-128 are refused, because the reciprocal of their scale is not finite.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.fp8_row import Fp8RowWords
from ninfer_format.encoders.sources import check_floating_matrix, row_blocks, to_binary32
from ninfer_format.errors import ArtifactError

_LARGEST_CODE = np.float32(448)


def fp8_row_maxabs(values: NDArray[Any]) -> Fp8RowWords:
    """Quantize a matrix to E4M3FN codes and bf16 row scales, bit for bit as the specification says.

    Args:
        values: Floating values [N, K]; they are rounded to bf16 first.

    Returns:
        The words.

    Raises:
        ArtifactError: `codec`: the source is not a floating matrix, holds a value that is not
            finite in bf16, or has a row of so small values that they cannot be scaled.
    """
    check_floating_matrix(values)
    codes = np.empty(values.shape, dtype=np.uint8)
    scales = np.empty(values.shape[0], dtype=np.uint16)
    for begin, end in row_blocks(values):
        codes[begin:end], scales[begin:end] = _quantize_rows(values[begin:end], begin)
    return Fp8RowWords(codes, scales)


def _quantize_rows(
    values: NDArray[Any], first_row: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    x = to_binary32(values).astype(ml_dtypes.bfloat16).astype(np.float32)
    amax = np.abs(x).max(axis=1)
    _refuse(~np.isfinite(amax), "a source value that is not finite", first_row)
    scale = (amax / _LARGEST_CODE).astype(ml_dtypes.bfloat16)
    # A scale that rounds to zero becomes the word 0x0001, says the specification; as that has no
    # finite reciprocal either, the row is refused with both.
    with np.errstate(over="ignore", divide="ignore"):
        inverse = np.float32(1) / scale.astype(np.float32)
    inverse[amax == 0] = 0
    _refuse(np.isinf(inverse), "values too small to be scaled", first_row)
    x *= inverse[:, np.newaxis]
    np.clip(x, -_LARGEST_CODE, _LARGEST_CODE, out=x)
    codes = x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    codes[amax == 0] = 0
    return codes, scale.view(np.uint16)


def _refuse(bad: NDArray[np.bool_], what: str, first_row: int) -> None:
    if bad.any():
        row = first_row + int(np.argmax(bad))
        raise ArtifactError("codec", f"fp8_e4m3fn_row_bf16 cannot hold row {row}: {what}")
