"""Launches of `embedding` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, PACK, is_contiguous, row_views
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, RecordFormat

SOURCE = "ops/embedding/embedding.cu"
THREADS = 256


def kernel(pack: int, dtypes: tuple[DType, ...]) -> Kernel:
    """The instance for accesses of `pack` elements and the dtypes of table and out."""
    types = ", ".join(ELEMENT_TYPES[dtype] for dtype in dtypes)
    return Kernel(SOURCE, f"ninfer::embedding_kernel<{pack}, {types}>")


def packed_kernel(record_format: RecordFormat, dtype: DType) -> Kernel:
    """The instance for a table in records and the dtype of out."""
    arguments = f"{record_format.number}, {ELEMENT_TYPES[dtype]}"
    return Kernel(SOURCE, f"ninfer::embedding_packed_kernel<{arguments}>")


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    packed = [packed_kernel(each, DType.BF16) for each in RECORD_FORMATS.values()]
    return [kernel(PACK, (DType.BF16,) * 2), *packed]


def embedding(token_ids: Tensor, table: Tensor | PackedWeight, out: Tensor) -> None:
    """See the contract in the package."""
    T, D = out.shape
    if not all(map(is_contiguous, (token_ids, out))):
        raise UnsupportedOpError("embedding", "cuda", detail=f"{token_ids!r}, {out!r}: strided")
    if T == 0:
        return
    if isinstance(table, PackedWeight):
        _gather_records(token_ids, table, out)
        return
    if not is_contiguous(table):
        raise UnsupportedOpError("embedding", "cuda", detail=f"{table!r}: strided")
    pack = min(row_views("embedding", table).pack, row_views("embedding", out).pack)
    device_of(out).launch(
        kernel(pack, (table.dtype, out.dtype)),
        Geometry(blocks=T, threads=THREADS, overlap=True),
        [pointer(token_ids), pointer(table), pointer(out), *integers(D)],
    )


def _gather_records(token_ids: Tensor, table: PackedWeight, out: Tensor) -> None:
    T, D = out.shape
    if D % 2:
        raise UnsupportedOpError("embedding", "cuda", detail=f"{table!r}: rows of odd length")
    row_scale = 0 if table.row_scale is None else table.row_scale.data.ptr
    device_of(out).launch(
        packed_kernel(table.record_format, out.dtype),
        Geometry(blocks=T, threads=THREADS, overlap=True),
        [
            pointer(token_ids),
            (table.data.data.ptr, POINTER),
            (row_scale, POINTER),
            pointer(out),
            *integers(D, table.record_format.records(D)),
        ],
    )
