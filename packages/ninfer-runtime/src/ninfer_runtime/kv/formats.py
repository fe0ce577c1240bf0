"""The formats in which a cache holds keys and values: a codec for either, with or without transform."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_runtime.kv import row_codecs
from ninfer_runtime.kv.hadamard import transform_rows
from ninfer_runtime.kv.row_codecs import Encoded, RowCodec


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Storage of the keys, or of the values.

    Attributes:
        codec: How a row is coded.
        transformed: Whether its Hadamard transform is what is coded.
    """

    codec: RowCodec
    transformed: bool

    def encode(self, rows: np.ndarray) -> Encoded:
        """Code float32 rows [..., 256]."""
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
"""By name."""
