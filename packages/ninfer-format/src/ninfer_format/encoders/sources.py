"""What a source of values may be, and its conversion to binary32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ninfer_format.errors import ArtifactError

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


def refuse_non_finite(values: NDArray[Any], what: str) -> None:
    """Refuse NaN and infinity.

    Raises:
        ArtifactError: `codec`, with the position of the first.
    """
    finite = np.isfinite(values)
    if not finite.all():
        position = tuple(int(index) for index in np.argwhere(~finite)[0])
        raise ArtifactError(
            "codec",
            f"{what} at {list(position)} is not finite",
            expected="a finite number",
            found=values[position],
        )
