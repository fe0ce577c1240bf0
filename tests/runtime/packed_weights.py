"""Stored matrices as weights for products, without an artifact to load them from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ninfer_format import Codec
from ninfer_runtime.device import DType
from ninfer_runtime.device.base import Device
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.packing import pack_on_host, relay, row_factors, rows_in_turns
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS

if TYPE_CHECKING:
    from ninfer_runtime.device.cuda import CudaDevice


def pack_weight(
    codec: Codec[Any], payload: np.ndarray, device: Device, *, in_turns: bool = False
) -> PackedWeight:
    """Lay out a stored matrix for `linear`: in NumPy on a CPU, by the kernel on a GPU."""
    N, K = codec.shape
    factors = stored_row_factors(codec, payload)
    if factors is not None and in_turns:
        factors = factors[rows_in_turns(N)]
    if device.kind == "cpu":
        records = pack_on_host(codec, payload, in_turns=in_turns)
        return PackedWeight(codec.format, (N, K), records, factors, device)
    gpu = cast("CudaDevice", device)
    stored = gpu.upload(payload)
    shape = RECORD_FORMATS[codec.format].records_shape((N, K))
    data = gpu.empty(shape, DType.UINT8).array
    relay(gpu, codec, stored.data.ptr, data.data.ptr, gpu.stream, in_turns=in_turns)
    on_gpu = None if factors is None else gpu.upload(factors)
    gpu.synchronize()  # what was stored is freed when this returns
    return PackedWeight(codec.format, (N, K), data, on_gpu, device)


def stored_row_factors(codec: Codec[Any], payload: np.ndarray) -> np.ndarray | None:
    """Factors of the rows, None if all scales are in the records."""
    planes = codec.geometry.planes
    return row_factors(codec, lambda name: payload[planes[name].offset : planes[name].end])
