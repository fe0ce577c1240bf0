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
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, ROWS, RecordFormat, to_records

if TYPE_CHECKING:
    from ninfer_runtime.cuda.streams import Stream
    from ninfer_runtime.device.cuda import CudaDevice

TURN = 8
"""Rows of a gate, and of what it gates, that take turns: in the sums of a product an element of the
one and its counterpart of the other then meet in one thread."""

_WARPS = 8


def rows_in_turns(rows: int) -> NDArray[np.intp]:
    """The stored row of each row of records in which the halves of a matrix take turns.

    Args:
        rows: Of the matrix, a multiple of twice `TURN`.
    """
    return np.arange(rows).reshape(2, -1, TURN).swapaxes(0, 1).reshape(-1)


def pack_on_host(
    codec: Codec[Any], payload: NDArray[np.uint8], *, in_turns: bool = False
) -> NDArray[np.uint8]:
    """Records of a stored matrix, in NumPy; see `PackedWeight`.

    Args:
        codec: The matrix.
        payload: Its bytes.
        in_turns: Its halves take turns, see `rows_in_turns`.
    """
    record_format = RECORD_FORMATS[codec.format]
    rows = rows_in_turns(codec.shape[0]) if in_turns else slice(None)
    words = codec.decode_words(payload)
    match words:
        case GroupedWords() | Nvfp4Words():
            return to_records(record_format, words.codes[rows], words.scales[rows])
        case Fp8RowWords():
            return to_records(record_format, words.codes[rows])
        case _:
            return to_records(record_format, words.reshape(codec.shape)[rows])


def relay(
    device: CudaDevice,
    codec: Codec[Any],
    stored: int,
    data: int,
    stream: Stream,
    *,
    in_turns: bool = False,
) -> None:
    """Queue the making of records from a stored matrix.

    Args:
        device: Where both lie.
        codec: The matrix, or whole row tiles of one as a matrix of their own.
        stored: Address of its payload.
        data: Address of its first record.
        stream: Where to queue it.
        in_turns: The halves of the matrix take turns, see `rows_in_turns`.
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
        (TURN if in_turns else ROWS, INT),
        (N // 2 if in_turns else ROWS // 2, INT),
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
