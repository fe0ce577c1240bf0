"""How one key or value row is stored: the codecs of engine specification 4.3, and fp32.

`encode` takes the float32 values of bf16 rows (of fp32: of any rows), already transformed where the
format asks for it. All codecs but fp32 are for rows of 256 components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ninfer_runtime.device.dtypes import STORAGE, DType, bf16_to_float32, float32_to_bf16

HEAD_DIM = 256
FP16_MAX = np.float32(65504)
E4M3_MAX = np.float32(448)
E2M1_MAX = np.float32(6)
INT8_GROUP = 64
NVFP4_GROUP = 16

Encoded = tuple[np.ndarray, ...]
"""Codes [..., code_width] and, where the codec has any, scales [..., scale_width]."""


@dataclass(frozen=True, slots=True)
class RowCodec:
    """A storage of rows.

    Attributes:
        name: Its name.
        number: The same in kernels (kv_rows.cuh); fp32 is in none.
        code_dtype: Element type of the codes.
        code_width: Elements of the codes of a row of 256 components.
        scale_dtype: Element type of the scales, None without scales.
        scale_width: Scales of a row.
        encode: Float32 rows [..., 256] to what is stored.
        decode: What is stored, one argument each, to float32 rows.
        any_head_dim: Whether rows of other lengths are stored as well, each component for itself.
    """

    name: str
    number: int
    code_dtype: DType
    code_width: int
    scale_dtype: DType | None
    scale_width: int
    encode: Callable[[np.ndarray], Encoded]
    decode: Callable[..., np.ndarray]
    any_head_dim: bool = False

    def codes_of(self, head_dim: int) -> int:
        """Elements of the codes of a row of `head_dim` components."""
        return head_dim if self.any_head_dim else self.code_width

    def row_bytes(self, head_dim: int) -> int:
        """Bytes of a row of `head_dim` components."""
        codes = self.codes_of(head_dim) * STORAGE[self.code_dtype].itemsize
        if self.scale_dtype is None:
            return codes
        return codes + self.scale_width * STORAGE[self.scale_dtype].itemsize


def _encode_fp32(rows: np.ndarray) -> Encoded:
    return (rows,)


def _decode_fp32(codes: np.ndarray) -> np.ndarray:
    return codes


def _encode_bf16(rows: np.ndarray) -> Encoded:
    return (float32_to_bf16(rows),)


def _decode_bf16(codes: np.ndarray) -> np.ndarray:
    return bf16_to_float32(codes)


def _encode_fp16(rows: np.ndarray) -> Encoded:
    return (np.clip(rows, -FP16_MAX, FP16_MAX).astype(np.float16),)


def _decode_fp16(codes: np.ndarray) -> np.ndarray:
    return codes.astype(np.float32)


def _grouped(rows: np.ndarray, size: int) -> np.ndarray:
    return rows.reshape(*rows.shape[:-1], rows.shape[-1] // size, size)


def _reciprocal(scales: np.ndarray) -> np.ndarray:
    """``1 / scale`` in float32, 0 where the scale is 0."""
    wide = scales.astype(np.float32)
    return np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)


def _encode_int8(rows: np.ndarray) -> Encoded:
    groups = _grouped(rows, INT8_GROUP)
    scales = (np.abs(groups).max(axis=-1) / np.float32(127)).astype(np.float16)
    codes = np.rint(groups * _reciprocal(scales)[..., None])
    return np.clip(codes, -127, 127).astype(np.int8).reshape(rows.shape), scales


def _decode_int8(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    values = _grouped(codes, INT8_GROUP) * scales.astype(np.float32)[..., None]
    return values.reshape(codes.shape)


def _e4m3(values: np.ndarray) -> np.ndarray:
    """Round to e4m3 bytes, to nearest even; larger values become the largest."""
    words: np.ndarray = np.clip(values, -E4M3_MAX, E4M3_MAX).astype(ml_dtypes.float8_e4m3fn)
    return words.view(np.uint8)


def _from_e4m3(codes: np.ndarray) -> np.ndarray:
    values: np.ndarray = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return values


def _encode_fp8(rows: np.ndarray) -> Encoded:
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    scales = np.clip(largest / E4M3_MAX, np.float32(2**-24), FP16_MAX).astype(np.float16)
    scales[largest == 0] = 0
    codes = _e4m3(rows * _reciprocal(scales))
    return np.where(largest == 0, np.uint8(0), codes), scales


def _decode_fp8(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return _from_e4m3(codes) * scales.astype(np.float32)


def _encode_nvfp4(rows: np.ndarray) -> Encoded:
    groups = _grouped(rows, NVFP4_GROUP)
    largest = np.abs(groups).max(axis=-1)
    scales = _e4m3(np.clip(largest / E2M1_MAX, np.float32(2**-9), E4M3_MAX))
    scales[largest == 0] = 0
    divisors = np.where(largest == 0, np.float32(1), _from_e4m3(scales))
    quotients = np.clip(groups / divisors[..., None], -E2M1_MAX, E2M1_MAX)
    codes = quotients.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(rows.shape)
    codes = np.where(np.repeat(largest == 0, NVFP4_GROUP, axis=-1), np.uint8(0), codes)
    return codes[..., 0::2] | codes[..., 1::2] << 4, scales


def _decode_nvfp4(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    nibbles = np.stack((codes & 15, codes >> 4), axis=-1).reshape(*codes.shape[:-1], HEAD_DIM)
    values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    scaled: np.ndarray = _grouped(values, NVFP4_GROUP) * _from_e4m3(scales)[..., None]
    return scaled.reshape(values.shape)


BF16 = RowCodec("bf16", 0, DType.BF16, HEAD_DIM, None, 0, _encode_bf16, _decode_bf16)
FP16 = RowCodec("fp16", 1, DType.FP16, HEAD_DIM, None, 0, _encode_fp16, _decode_fp16)
INT8 = RowCodec("int8", 2, DType.INT8, HEAD_DIM, DType.FP16, 4, _encode_int8, _decode_int8)
FP8 = RowCodec("fp8", 3, DType.UINT8, HEAD_DIM, DType.FP16, 1, _encode_fp8, _decode_fp8)
NVFP4 = RowCodec(
    "nvfp4", 4, DType.UINT8, HEAD_DIM // 2, DType.UINT8, 16, _encode_nvfp4, _decode_nvfp4
)
FP32 = RowCodec(
    "fp32", -1, DType.FP32, HEAD_DIM, None, 0, _encode_fp32, _decode_fp32, any_head_dim=True
)
