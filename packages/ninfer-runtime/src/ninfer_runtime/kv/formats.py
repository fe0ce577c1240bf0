"""The formats in which a cache holds keys and values: a codec for either, with or without transform."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_runtime.device.dtypes import bf16_to_float32, float32_to_bf16
from ninfer_runtime.kv import row_codecs
from ninfer_runtime.kv.hadamard import transform_rows
from ninfer_runtime.kv.row_codecs import Encoded, RowCodec


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Storage of the keys, or of the values.

    Attributes:
        codec: How a row is coded.
        transformed: Whether its Hadamard transform is what is coded.
        rounded: Whether a row is rounded to bf16 before.
    """

    codec: RowCodec
    transformed: bool
    rounded: bool = True

    def encode(self, rows: np.ndarray) -> Encoded:
        """Code float32 rows [..., HD]."""
        if self.rounded:
            rows = bf16_to_float32(float32_to_bf16(rows))
        return self.codec.encode(transform_rows(rows) if self.transformed else rows)


@dataclass(frozen=True, slots=True)
class KVFormat:
    """Storage of a cache.

    Attributes:
        name: As in the option ``kv_dtype``.
        key: Of the keys.
        value: Of the values.
    """

    name: str
    key: RowFormat
    value: RowFormat

    @property
    def any_head_dim(self) -> bool:
        """Whether rows of other lengths than 256 are stored as well."""
        return self.key.codec.any_head_dim and self.value.codec.any_head_dim


def _kv_format(name: str, key: RowCodec, value: RowCodec) -> KVFormat:
    """Keys are transformed wherever they lose bits, values only where they have four."""
    return KVFormat(
        name,
        RowFormat(key, transformed=key is not row_codecs.BF16),
        RowFormat(value, transformed=value is row_codecs.NVFP4),
    )


KV_FORMATS = {
    each.name: each
    for each in (
        _kv_format("bf16", row_codecs.BF16, row_codecs.FP16),
        _kv_format("int8", row_codecs.INT8, row_codecs.INT8),
        _kv_format("fp8", row_codecs.FP8, row_codecs.FP8),
        _kv_format("nvfp4", row_codecs.NVFP4, row_codecs.NVFP4),
        _kv_format("k8v4", row_codecs.FP8, row_codecs.NVFP4),
    )
}
"""Those of every device, by name, the default of a GPU first."""

_ROWS_AS_THEY_ARE = RowFormat(row_codecs.FP32, transformed=False, rounded=False)
FP32 = KVFormat("fp32", _ROWS_AS_THEY_ARE, _ROWS_AS_THEY_ARE)
"""Keys and values as they were computed, for exactness and for heads of any size: of the CPU only."""


def kv_formats(device_kind: str) -> dict[str, KVFormat]:
    """The formats of a kind of device by name, its default first."""
    return {FP32.name: FP32, **KV_FORMATS} if device_kind == "cpu" else KV_FORMATS
