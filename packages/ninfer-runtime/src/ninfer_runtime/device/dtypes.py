"""Element types of tensors and the rounding between them.

NumPy and CuPy have no bfloat16, so a bf16 tensor holds its 16-bit words and says so by its tag.
"""

from __future__ import annotations

from enum import StrEnum

import ml_dtypes
import numpy as np


class DType(StrEnum):
    """Element type of a tensor."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT32 = "int32"
    INT8 = "int8"
    UINT8 = "uint8"


STORAGE: dict[DType, np.dtype] = {
    DType.FP32: np.dtype(np.float32),
    DType.BF16: np.dtype(np.uint16),
    DType.FP16: np.dtype(np.float16),
    DType.INT32: np.dtype(np.int32),
    DType.INT8: np.dtype(np.int8),
    DType.UINT8: np.dtype(np.uint8),
}
"""The array type that holds the elements of each dtype."""


def bf16_to_float32(words: np.ndarray) -> np.ndarray:
    """The exact values of bf16 words (uint16, any shape)."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bf16(values: np.ndarray) -> np.ndarray:
    """Round float32 values to bf16 words, to nearest, ties to even; NaN stays NaN."""
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)
