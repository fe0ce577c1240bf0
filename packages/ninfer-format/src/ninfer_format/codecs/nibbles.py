"""Two 4-bit codes in a byte, the one of the even column in the low half."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def pack_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack codes [rows, columns] of an even number of columns: uint8 [rows, columns / 2].

    Only the low four bits of a code count.
    """
    pairs = (np.ascontiguousarray(codes) & 15).view("<u2")
    pairs |= pairs >> 4
    return pairs.astype(np.uint8)


def unpack_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Codes 0 to 15 of packed bytes [rows, bytes]: uint8 [rows, 2 * bytes]."""
    pairs = packed.astype("<u2")
    pairs |= pairs << 4
    pairs &= 0x0F0F
    return pairs.view(np.uint8)
