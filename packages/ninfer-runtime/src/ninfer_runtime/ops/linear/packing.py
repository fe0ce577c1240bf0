"""Stored weights to `PackedWeight`, on the host in NumPy, on a GPU by a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ninfer_format import Codec, Fp8RowWords, GroupedWords, Nvfp4Words
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import INT, POINTER, Argument, Geometry
from ninfer_runtime.device.base import Device
from ninfer_runtime.device.dtypes import DType, bf16_to_float32
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, RecordFormat, to_records

if TYPE_CHECKING:
    from ninfer_runtime.device.cuda import CudaDevice

_WARPS = 8


def pack_weight(codec: Codec[Any], payload: NDArray[np.uint8], device: Device) -> PackedWeight:
    """Lay out a stored matrix for `linear`.

    Args:
        codec: What the bytes are.
        payload: The bytes of the object, on the host.
        device: Where the weight goes.

    Raises:
        UnsupportedOpError: The device has no kernel for the format.
    """
    record_format = RECORD_FORMATS.get(codec.format)
    if record_format is None or len(codec.shape) != 2:
        raise UnsupportedOpError("linear", device.kind, detail=f"{codec.format} {codec.shape}")
    if device.kind == "cpu":
        data, row_scale = pack_on_host(codec, payload)
        return PackedWeight(codec.format, _shape(codec), data, row_scale, device)
    return _pack_on_gpu(codec, payload, record_format, cast("CudaDevice", device))


def pack_on_host(
    codec: Codec[Any], payload: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None]:
    """Records and row factors of a stored matrix, in NumPy; see `PackedWeight`."""
    record_format = RECORD_FORMATS[codec.format]
    words = codec.decode_words(payload)
    match words:
        case GroupedWords():
            return to_records(record_format, words.codes, words.scales), None
        case Nvfp4Words():
            records = to_records(record_format, words.codes, words.scales)
            return records, _reciprocals(words.divisors, codec.shape[0])
        case Fp8RowWords():
            return to_records(record_format, words.codes), bf16_to_float32(words.scales)
        case _:
            return to_records(record_format, words.reshape(codec.shape)), None


def relay_kernel(record_format: RecordFormat) -> Kernel:
    """The kernel that puts stored weights into records."""
    return Kernel("ops/linear/relay.cu", f"ninfer::relay_weight_kernel<{record_format.number}>")


def _pack_on_gpu(
    codec: Codec[Any],
    payload: NDArray[np.uint8],
    record_format: RecordFormat,
    device: CudaDevice,
) -> PackedWeight:
    N, K = _shape(codec)
    tiles, records = record_format.tiles(N), record_format.records(K)
    stored = device.upload(payload)
    data = device.empty((tiles, records, record_format.record_bytes), DType.UINT8).array
    planes = {name: stored.data.ptr + plane.offset for name, plane in codec.geometry.planes.items()}
    grouped = "base" in planes
    arguments: list[Argument] = [
        (planes["base"] if grouped else planes.get("code", stored.data.ptr), POINTER),
        (planes.get("high", 0), POINTER),
        (planes.get("scale", 0), POINTER),
        (data.data.ptr, POINTER),
        (N, INT),
        (records * 64 if grouped else K, INT),
        (tiles, INT),
        (records, INT),
    ]
    geometry = Geometry(-(-tiles * records // _WARPS), _WARPS * 32)
    device.launch(relay_kernel(record_format), geometry, arguments)
    row_scale = _row_scale(codec, payload)
    packed = None if row_scale is None else device.upload(row_scale)
    device.synchronize()  # what was stored is freed when this returns
    return PackedWeight(codec.format, (N, K), data, packed, device)


def _row_scale(codec: Codec[Any], payload: NDArray[np.uint8]) -> NDArray[np.float32] | None:
    """Factors of the rows of a stored matrix, read from its last plane."""
    planes = codec.geometry.planes
    if codec.format == "nvfp4":
        plane = planes["divisors"]
        words = payload[plane.offset : plane.end].copy().view("<u4")
        return _reciprocals(words, codec.shape[0])
    if codec.format == "fp8_e4m3fn_row_bf16":
        plane = planes["scale"]
        return bf16_to_float32(payload[plane.offset : plane.end].copy().view("<u2"))
    return None


def _reciprocals(divisors: NDArray[np.uint32], rows: int) -> NDArray[np.float32]:
    values = np.float32(1) / divisors.astype(np.uint32).view(np.float32)
    return np.repeat(values, rows // len(divisors))


def _shape(codec: Codec[Any]) -> tuple[int, int]:
    rows, columns = codec.shape
    return rows, columns
