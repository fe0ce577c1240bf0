"""`cast_direct`: store values as bf16, fp32 or int32 words (formats specification, section 8.5)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ninfer_format.dtypes import BF16, FP32, INT32
from ninfer_format.encoders.sources import is_floating, refuse_non_finite, to_binary32
from ninfer_format.errors import ArtifactError

_INT32 = np.iinfo(np.int32)


def cast_direct(values: NDArray[Any], format: str) -> NDArray[Any]:
    """Convert values to the words of a direct format.

    Args:
        values: Real or integer numbers of any shape.
        format: ``bf16`` (rounded to nearest, ties to even, from binary32), ``fp32`` or ``int32``
            (fractions are cut off).

    Returns:
        uint16, uint32 or int32 words in the same shape. Values that have the target's type
        already keep their bits.

    Raises:
        ArtifactError: `codec`: a value is NaN, infinite or beyond the target's range; `encoding`:
            the format is not a direct one.
    """
    if not is_floating(values.dtype) and values.dtype.kind not in "iu":
        raise ArtifactError(
            "codec", "source is not numeric", expected="real or integer", found=values.dtype.name
        )
    if format == BF16.name:
        return _cast_bf16(values)
    if format == FP32.name:
        return _finite_binary32(values, format).view(FP32.word)
    if format == INT32.name:
        return _cast_int32(values)
    raise ArtifactError(
        "encoding", "not a direct format", expected="bf16, fp32 or int32", found=format
    )


def _cast_bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    single = _finite_binary32(values, BF16.name)
    rounded = single.astype(ml_dtypes.bfloat16)
    _check_overflow(single, rounded, BF16.name)
    return rounded.view(BF16.word)


def _finite_binary32(values: NDArray[Any], target: str) -> NDArray[np.float32]:
    if is_floating(values.dtype):
        refuse_non_finite(values, "source value")
    single = np.ascontiguousarray(to_binary32(values)).reshape(values.shape)
    _check_overflow(values, single, target)
    return single


def _check_overflow(values: NDArray[Any], rounded: NDArray[Any], target: str) -> None:
    finite = np.isfinite(rounded)
    if not finite.all():
        position = tuple(int(index) for index in np.argwhere(~finite)[0])
        raise ArtifactError(
            "codec",
            f"source value at {list(position)} is beyond the range of {target}",
            expected="a value that stays finite",
            found=values[position],
        )


def _cast_int32(values: NDArray[Any]) -> NDArray[np.int32]:
    if is_floating(values.dtype):
        refuse_non_finite(values, "source value")
        # Small floats compare exactly only as a wider type that also holds 2^31 - 1.
        values = values.astype(np.float64, copy=False)
    outside = (values < _INT32.min) | (values > _INT32.max)
    if outside.any():
        position = tuple(int(index) for index in np.argwhere(outside)[0])
        raise ArtifactError(
            "codec",
            f"source value at {list(position)} is beyond int32",
            expected=f"{_INT32.min} to {_INT32.max}",
            found=values[position],
        )
    return np.ascontiguousarray(values.astype(INT32.word)).reshape(values.shape)
