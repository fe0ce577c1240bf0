"""`nvfp4_absmax`: the reference encoder of nvfp4 (formats specification, section 8.4).

One divisor for the whole matrix maps its largest magnitude to the largest code times the largest
scale, 6 * 448. The scale of a block is its largest magnitude over 6. All steps round in binary32.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.nvfp4 import Nvfp4Words
from ninfer_format.dtypes import NVFP4
from ninfer_format.encoders.sources import (
    check_floating_matrix,
    refuse_non_finite,
    row_blocks,
    to_binary32,
)
from ninfer_format.errors import ArtifactError

_GROUP = NVFP4.group
_LARGEST_CODE = np.float32(6)
_LARGEST_SCALE = np.float32(448)
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between the E2M1 magnitudes; a value on one of them becomes the smaller magnitude."""
_SIGN = 8


def nvfp4_absmax(values: NDArray[Any]) -> Nvfp4Words:
    """Quantize a matrix to E2M1 codes, E4M3FN block scales and one divisor.

    Args:
        values: Floating values [N, K], K a multiple of 16.

    Returns:
        The words, bit for bit as the specification says; one divisor.

    Raises:
        ArtifactError: `codec`: the source is not such a matrix, holds a value that is not finite
            in binary32, or holds only values so small that their divisor is not finite.
    """
    check_floating_matrix(values)
    rows, columns = values.shape
    if columns % _GROUP:
        raise ArtifactError(
            "codec",
            "source rows are not whole blocks",
            expected=f"a multiple of {_GROUP} columns",
            found=columns,
        )
    divisor = _divisor(values)
    codes = np.empty((rows, columns), dtype=np.uint8)
    scales = np.empty((rows, columns // _GROUP), dtype=np.uint8)
    for begin, end in row_blocks(values):
        codes[begin:end], scales[begin:end] = _quantize_rows(values[begin:end], divisor)
    return Nvfp4Words(codes, scales, np.array([divisor]).view(np.uint32))


def _divisor(values: NDArray[Any]) -> np.float32:
    largest = np.float32(0)
    for begin, end in row_blocks(values):
        block = to_binary32(values[begin:end])
        refuse_non_finite(block, "source value", first_row=begin)
        largest = max(largest, np.abs(block).max())
    if largest == 0:
        return np.float32(1)
    with np.errstate(over="ignore"):
        divisor = np.float32(_LARGEST_CODE * _LARGEST_SCALE / largest)
    if np.isinf(divisor):
        raise ArtifactError(
            "codec",
            "source values are too small for a divisor",
            expected="a largest magnitude whose divisor is finite",
            found=largest,
        )
    return divisor


def _quantize_rows(
    values: NDArray[Any], divisor: np.float32
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    x = to_binary32(values) * divisor
    grouped = x.reshape(x.shape[0], -1, _GROUP)
    largest = np.abs(grouped).max(axis=2) / _LARGEST_CODE
    scales = np.minimum(largest, _LARGEST_SCALE).astype(ml_dtypes.float8_e4m3fn)
    scale = scales.astype(np.float32)
    # Where the scale is zero, infinity makes every quotient and so every code zero.
    scale[scale == 0] = np.inf
    grouped /= scale[:, :, np.newaxis]
    return _round_to_codes(x), scales.view(np.uint8)


def _round_to_codes(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Nearest E2M1 words, with one zero only; magnitudes above 6 become 6."""
    magnitude = np.abs(x)
    codes = (magnitude > _MIDPOINTS[0]).view(np.uint8)
    # Nothing that rounds to zero is negative enough to keep its sign.
    signs = (x < -_MIDPOINTS[0]).view(np.uint8)
    for midpoint in _MIDPOINTS[1:]:
        codes += magnitude > midpoint
    codes += signs * np.uint8(_SIGN)
    return codes
