"""fp8_e4m3fn_row_bf16 from values, over an array module (formats specification, section 8.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer_quant.array_module import Array
from ninfer_quant.encoders.small_floats import LARGEST_E4M3, e4m3_words

_SMALLEST_SCALE = np.uint32(0x0001_0000)
"""binary32 word of the bf16 word 0x0001, which stands in for scales that round to zero."""
_SIGN = np.uint8(0x80)


def quantize_rows(xp: Any, x: Array) -> tuple[Array, Array, Array]:
    """Quantize the rows of a matrix.

    Args:
        xp: Array module.
        x: Finite values, float32 ``[N, K]``; they are rounded to bf16 first.

    Returns:
        Codes uint8 ``[N, K]``, bf16 scale words uint16 ``[N]``, and which rows cannot be stored
        because a step of theirs is not finite, bool ``[N]``.
    """
    x = _rounded_to_bf16(xp, x)
    largest = xp.abs(x).max(axis=1)
    scales = _rounded_to_bf16(xp, largest / LARGEST_E4M3)
    words = scales.view(xp.uint32)
    words = xp.where((words == 0) & (largest > 0), _SMALLEST_SCALE, words)
    scales = words.view(xp.float32)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        inverse = xp.where(largest > 0, np.float32(1) / scales, np.float32(0))
        y = x * inverse[:, np.newaxis]
    is_bad = ~(xp.isfinite(largest) & xp.isfinite(inverse) & xp.isfinite(y).all(axis=1))
    magnitudes = xp.abs(y)
    xp.minimum(magnitudes, LARGEST_E4M3, out=magnitudes)
    magnitudes[is_bad] = 0
    codes = e4m3_words(xp, magnitudes)
    codes += xp.signbit(y).view(xp.uint8) * _SIGN
    codes[largest == 0] = 0
    return codes, (words >> np.uint32(16)).astype(xp.uint16), is_bad


def _rounded_to_bf16(xp: Any, x: Array) -> Array:
    """Round binary32 to bf16, to nearest and ties to even; what is beyond becomes infinite."""
    words = x.view(xp.uint32)
    odd = (words >> np.uint32(16)) & np.uint32(1)
    words = (words + odd + np.uint32(0x7FFF)) & np.uint32(0xFFFF0000)
    return words.view(xp.float32)
