"""The Hadamard transform in blocks of 128: ``H[i][j] = (-1)^popcount(i & j) / sqrt(128)``.

H is symmetric and orthonormal, so the transform is its own inverse (formats specification,
section 7).
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.dtypes import EXL3_MUL1
from ninfer_format.errors import ArtifactError

HADAMARD_BLOCK = EXL3_MUL1.block
HADAMARD_SCALE = 1 / sqrt(HADAMARD_BLOCK)


@cache
def hadamard_signs() -> NDArray[np.int8]:
    """The signs of H: int8 [128, 128] of 1 and -1; read-only."""
    index = np.arange(HADAMARD_BLOCK)
    odd = np.bitwise_count(index[:, np.newaxis] & index) % 2
    signs: NDArray[np.int8] = 1 - 2 * odd.astype(np.int8)
    signs.flags.writeable = False
    return signs


def signed_sums(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Multiply blocks of 128 by the signs of H, without its scale.

    Sums of integers stay exact as long as they fit the significand of the type.

    Args:
        values: float32 or float64 [N, K].
        axis: 0 to transform along N, 1 along K; that length is a multiple of 128.

    Returns:
        The sums, in the type of `values`.

    Raises:
        ArtifactError: `codec`: the length is no multiple of 128.
    """
    rows, columns = values.shape
    if values.shape[axis] % HADAMARD_BLOCK:
        raise ArtifactError(
            "codec",
            "a Hadamard transform needs whole blocks",
            expected=f"a multiple of {HADAMARD_BLOCK}",
            found=values.shape[axis],
        )
    signs = hadamard_signs().astype(values.dtype)
    sums: NDArray[Any]
    if axis == 0:
        sums = signs @ values.reshape(-1, HADAMARD_BLOCK, columns)
    else:
        sums = values.reshape(-1, HADAMARD_BLOCK) @ signs
    return sums.reshape(rows, columns)


def transform_blocks(values: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """Multiply blocks of 128 by H in float64; twice gives the values back.

    Args:
        values: Real numbers [N, K].
        axis: 0 to transform along N, 1 along K; that length is a multiple of 128.

    Raises:
        ArtifactError: `codec`: the length is no multiple of 128.
    """
    sums: NDArray[np.float64] = signed_sums(values.astype(np.float64), axis) * HADAMARD_SCALE
    return sums
