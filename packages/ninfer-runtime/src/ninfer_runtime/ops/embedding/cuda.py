"""Launch of `embedding` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS, RecordFormat

THREADS = 128
RECORD_THREADS = 4
"""Threads for what a record has of one row."""


def kernel(record_format: RecordFormat, dtype: DType) -> Kernel:
    """The instance for a table in records and the dtype of out."""
    arguments = f"{record_format.number}, {ELEMENT_TYPES[dtype]}"
    return Kernel("ops/embedding/embedding.cu", f"ninfer::embedding_kernel<{arguments}>")


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    return [kernel(each, DType.BF16) for each in RECORD_FORMATS.values()]


def embedding(token_ids: Tensor, table: Tensor | PackedWeight, out: Tensor) -> None:
    """See the contract in the package; models on a GPU hold every table in records."""
    T, D = out.shape
    if isinstance(table, Tensor):
        raise UnsupportedOpError("embedding", "cuda", detail=f"{table!r}: not in records")
    if D % 2:
        raise UnsupportedOpError("embedding", "cuda", detail=f"{table!r}: rows of odd length")
    if not all(map(is_contiguous, (token_ids, out))):
        raise UnsupportedOpError("embedding", "cuda", detail=f"{token_ids!r}, {out!r}: strided")
    if T == 0:
        return
    records = table.record_format.records(D)
    parts = -(-records * RECORD_THREADS // THREADS)
    row_scale = 0 if table.row_scale is None else table.row_scale.data.ptr
    device_of(out).launch(
        kernel(table.record_format, out.dtype),
        Geometry(blocks=T * parts, threads=THREADS, overlap=True),
        [
            pointer(token_ids),
            (table.data.data.ptr, POINTER),
            (row_scale, POINTER),
            pointer(out),
            *integers(D, records, parts),
        ],
    )
