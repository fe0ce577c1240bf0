"""Stored weights to the records of a `PackedWeight`, on the host in NumPy, on a GPU by a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format import Codec, Fp8RowWords, GroupedWords, Nvfp4Words
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import INT, POINTER, Argument, Geometry
from ninfer_runtime.device.dtypes import bf16_to_float32
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, RecordFormat, to_records

if TYPE_CHECKING:
    from ninfer_runtime.cuda.streams import Stream
    from ninfer_runtime.device.cuda import CudaDevice

_WARPS = 8


def pack_on_host(codec: Codec[Any], payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Records of a stored matrix, in NumPy; see `PackedWeight`."""
    record_format = RECORD_FORMATS[codec.format]
    words = codec.decode_words(payload)
    match words:
        case GroupedWords() | Nvfp4Words():
            return to_records(record_format, words.codes, words.scales)
        case Fp8RowWords():
            return to_records(record_format, words.codes)
        case _:
            return to_records(record_format, words.reshape(codec.shape))


def relay(device: CudaDevice, codec: Codec[Any], stored: int, data: int, stream: Stream) -> None:
    """Queue the making of records from a stored matrix.

    Args:
        device: Where both lie.
        codec: The matrix, or whole row tiles of one as a matrix of their own.
        stored: Address of its payload.
        data: Address of its first record.
        stream: Where to queue it.
    """
    record_format = RECORD_FORMATS[codec.format]
    N, K = _shape(codec)
    tiles, records, _ = record_format.records_shape((N, K))
    planes = {name: stored + plane.offset for name, plane in codec.geometry.planes.items()}
    grouped = "base" in planes
    arguments: list[Argument] = [
        (planes["base"] if grouped else planes.get("code", stored), POINTER),
        (planes.get("high", 0), POINTER),
        (planes.get("scale", 0), POINTER),
        (data, POINTER),
        (N, INT),
        (records * 64 if grouped else K, INT),
        (tiles, INT),
        (records, INT),
    ]
    geometry = Geometry(-(-tiles * records // _WARPS), _WARPS * 32)
    device.kernel(relay_kernel(record_format)).launch(geometry, arguments, stream.handle)


def relay_kernel(record_format: RecordFormat) -> Kernel:
    """The kernel that puts stored weights into records."""
    return Kernel("ops/linear/relay.cu", f"ninfer::relay_weight_kernel<{record_format.number}>")


def row_factors(
    codec: Codec[Any], plane: Callable[[str], NDArray[np.uint8]]
) -> NDArray[np.float32] | None:
    """Factors of the rows of a stored matrix, None if all of its scales are in the records.

    Args:
        codec: The matrix.
        plane: Reads the bytes of one of its planes.

    Returns:
        float32 [N]; for nvfp4 the reciprocal of the divisor of the row's matrix, as it comes out.
    """
    if codec.format == "nvfp4":
        divisors = plane("divisors").copy().view("<f4")
        with np.errstate(divide="ignore", over="ignore"):
            reciprocals = np.float32(1) / divisors
        return np.repeat(reciprocals, codec.shape[0] // codec.divisors)
    if codec.format == "fp8_e4m3fn_row_bf16":
        return bf16_to_float32(plane("scale").copy().view("<u2"))
    return None


def _shape(codec: Codec[Any]) -> tuple[int, int]:
    rows, columns = codec.shape
    return rows, columns
