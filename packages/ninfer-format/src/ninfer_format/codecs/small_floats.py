"""Values of the 4-bit and 8-bit floats (formats specification, section 3).

E2M1 and E4M3FN name the bits of exponent and mantissa. E4M3FN has no infinities, and two words that
are not numbers: 0x7f and 0xff.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

E4M3FN_NAN = 0x7F
"""The magnitude bits of the E4M3FN words that are not numbers."""
E4M3FN_MAGNITUDE = 0x7F
"""All bits of an E4M3FN word but the sign."""

E2M1_VALUES: NDArray[np.float32] = (
    np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
)
"""Value of each E2M1 word: float32 [16]."""

E4M3FN_VALUES: NDArray[np.float32] = (
    np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
)
"""Value of each E4M3FN word: float32 [256]."""
