"""Launch of `embedding` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, PACK, is_contiguous, row_views
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError

THREADS = 256


def kernel(pack: int, dtypes: tuple[DType, ...]) -> Kernel:
    """The instance for accesses of `pack` elements and the dtypes of table and out."""
    types = ", ".join(ELEMENT_TYPES[dtype] for dtype in dtypes)
    return Kernel("ops/embedding/embedding.cu", f"ninfer::embedding_kernel<{pack}, {types}>")


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    return [kernel(PACK, (DType.BF16,) * 2)]


def embedding(token_ids: Tensor, table: Tensor, out: Tensor) -> None:
    """See the contract in the package."""
    op = "embedding"
    if not all(map(is_contiguous, (token_ids, table, out))):
        raise UnsupportedOpError(op, table.device.kind, detail=f"{table!r}, {out!r}: strided")
    T, D = out.shape
    if T == 0:
        return
    pack = min(row_views(op, table).pack, row_views(op, out).pack)
    device_of(out).launch(
        kernel(pack, (table.dtype, out.dtype)),
        Geometry(blocks=T, threads=THREADS, overlap=True),
        [pointer(token_ids), pointer(table), pointer(out), *integers(D)],
    )
