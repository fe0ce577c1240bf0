"""A weight matrix in records, on a device."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ninfer_runtime.device.base import Device
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, RecordFormat


def packed_bytes(weight_format: str, shape: tuple[int, int]) -> int:
    """Bytes of a weight [N, K] in records, with the factors of its rows."""
    record_format = RECORD_FORMATS[weight_format]
    row_scale = 4 * shape[0] if record_format.has_row_scale else 0
    return prod(record_format.records_shape(shape)) + row_scale


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [N, K] of a stored format, laid out for `linear`.

    Attributes:
        format: Numeric format, for example ``q4_g64_fp16``.
        shape: N and K.
        data: Array uint8 [tiles, records, record_bytes] of the device's module.
        row_scale: Array float32 [N], None for formats whose scales are all in the records. For
            nvfp4 the reciprocal of the divisor of the row's matrix.
        device: Where both lie.
    """

    format: str
    shape: tuple[int, int]
    data: Any
    row_scale: Any
    device: Device

    @property
    def record_format(self) -> RecordFormat:
        """How the records hold the words."""
        return RECORD_FORMATS[self.format]

    @property
    def num_bytes(self) -> int:
        """Bytes that one product reads of it."""
        row_scale = 0 if self.row_scale is None else int(self.row_scale.nbytes)
        return int(self.data.nbytes) + row_scale

    def __repr__(self) -> str:
        return f"PackedWeight({self.format}, {list(self.shape)}, {self.device.kind})"
