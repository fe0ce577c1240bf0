"""What a source of values may be, and its conversion to binary32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ninfer_format.errors import ArtifactError

_BLOCK_ELEMENTS = 1 << 18
"""Elements that encoders handle at a time: the intermediate values then stay in the cache."""

_SMALL_FLOATS = (
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
)


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether values of `dtype` are real numbers; NumPy does not count bfloat16 among them."""
    return dtype.kind == "f" or dtype in _SMALL_FLOATS


def to_binary32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Round values to binary32, to nearest and ties to even; too large ones become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def check_floating_matrix(values: NDArray[Any]) -> None:
    """Check that values are a floating matrix [N, K] that is not empty.

    Raises:
        ArtifactError: `codec`.
    """
    if values.ndim != 2 or not is_floating(values.dtype) or not values.size:
        raise ArtifactError(
            "codec",
            "source cannot be quantized",
            expected="floating values of rank 2",
            found=f"{values.dtype.name} {list(values.shape)}",
        )


def row_blocks(values: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Cut the rows of a matrix [N, K] into blocks [begin, end) that are encoded one by one."""
    rows, columns = values.shape
    step = max(1, _BLOCK_ELEMENTS // max(1, columns))
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)


def refuse_non_finite(values: NDArray[Any], what: str, first_row: int = 0) -> None:
    """Refuse NaN and infinity.

    Args:
        values: The values.
        what: What they are, for the message.
        first_row: What the message counts the first axis from.

    Raises:
        ArtifactError: `codec`, with the position of the first.
    """
    finite = np.isfinite(values)
    if not finite.all():
        position = tuple(int(index) for index in np.argwhere(~finite)[0])
        place = [position[0] + first_row, *position[1:]] if position else []
        raise ArtifactError(
            "codec",
            f"{what} at {place} is not finite",
            expected="a finite number",
            found=values[position],
        )
