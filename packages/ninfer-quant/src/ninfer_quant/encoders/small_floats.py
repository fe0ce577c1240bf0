"""Rounding to E2M1 and E4M3FN, to nearest with ties to even, by arithmetic of binary32."""

from __future__ import annotations

from typing import Any

import numpy as np

from ninfer_format.codecs.small_floats import E4M3FN_VALUES
from ninfer_quant.array_module import Array

LARGEST_E2M1 = np.float32(6)
LARGEST_E4M3 = np.float32(448)
LARGEST_SCALE_WORD = 0x7E
"""The E4M3FN word of 448."""

E4M3_SCALES: np.ndarray = E4M3FN_VALUES[: LARGEST_SCALE_WORD + 1]
"""Value of each scale word: float32 [127], ascending from 0."""

_EXPONENT_BITS = np.int32(0x7F800000)
_HALF_STEPS = np.float32(1.5 * 2**22)
"""Added to a number in [1, 2), it leaves one bit behind the point; a power of two scales it."""
_CODE_OF_DOUBLED = np.array([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], np.uint8)
"""E2M1 code by twice the magnitude."""
_SIGN = np.uint8(8)
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)

_SMALLEST_NORMAL = np.float32(2.0**-6)
_SUBNORMAL_STEPS = np.float32(2.0**9)
_DROPPED_BITS = 20
"""Mantissa bits of binary32 that E4M3FN does not have."""
_EXPONENT_OFFSET = np.int32((127 - 7) << 3)


def nearest_e2m1(xp: Any, magnitudes: Array) -> Array:
    """The E2M1 magnitude next to each number; ties go to the even code, what is above 6 to 6.

    Args:
        xp: Array module.
        magnitudes: float32, not negative, far below the end of binary32.

    Returns:
        float32 of the same shape, each 0, 0.5, 1, 1.5, 2, 3, 4 or 6.
    """
    power = (magnitudes.view(xp.int32) & _EXPONENT_BITS).view(xp.float32)
    xp.maximum(power, np.float32(1), out=power)
    power *= _HALF_STEPS
    rounded = magnitudes + power
    rounded -= power
    xp.minimum(rounded, LARGEST_E2M1, out=rounded)
    return rounded


def e2m1_codes(xp: Any, nearest: Array, is_negative: Array) -> Array:
    """Words of magnitudes that `nearest_e2m1` gave; zero has no sign: uint8."""
    doubled = (nearest + nearest).astype(xp.uint8)
    codes = xp.asarray(_CODE_OF_DOUBLED)[doubled]
    codes += (is_negative & (codes > 0)).view(xp.uint8) * _SIGN
    return codes


def e2m1_codes_ties_down(xp: Any, values: Array) -> Array:
    """Nearest E2M1 words where ties go to the smaller magnitude; zero has no sign: uint8."""
    magnitudes = xp.abs(values)
    codes = (magnitudes > np.float32(_MIDPOINTS[0])).view(xp.uint8)
    for midpoint in _MIDPOINTS[1:]:
        codes += (magnitudes > np.float32(midpoint)).view(xp.uint8)
    # Nothing that rounds to zero is negative enough to keep its sign.
    codes += (values < np.float32(-_MIDPOINTS[0])).view(xp.uint8) * _SIGN
    return codes


def e4m3_words(xp: Any, magnitudes: Array) -> Array:
    """Nearest E4M3FN words of numbers from 0 to 448, ties to even: uint8."""
    bits = magnitudes.view(xp.int32)
    odd = (bits >> _DROPPED_BITS) & np.int32(1)
    normal = ((bits + odd + np.int32((1 << (_DROPPED_BITS - 1)) - 1)) >> _DROPPED_BITS) - (
        _EXPONENT_OFFSET
    )
    subnormal = xp.rint(xp.minimum(magnitudes, _SMALLEST_NORMAL) * _SUBNORMAL_STEPS)
    words = xp.where(magnitudes < _SMALLEST_NORMAL, subnormal.astype(xp.int32), normal)
    return words.astype(xp.uint8)
