"""Launch of the ops that combine two tensors element by element (pointwise.cuh)."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, PACK, row_views
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor

THREADS = 256


def pointwise_kernel(op: str, pack: int, dtypes: tuple[DType, ...]) -> Kernel:
    """The instance of an op for accesses of `pack` elements and the dtypes of x, y and out."""
    types = ", ".join(ELEMENT_TYPES[dtype] for dtype in dtypes)
    return Kernel(f"ops/{op}/{op}.cu", f"ninfer::{op}_kernel<{pack}, {types}>")


def pointwise_kernels(op: str) -> list[Kernel]:
    """The instances that models need: bf16 rows of whole packs."""
    return [pointwise_kernel(op, PACK, (DType.BF16,) * 3)]


def launch_pointwise(op: str, x: Tensor, y: Tensor, out: Tensor) -> None:
    """Write ``op(x, y)`` to `out`; all of one shape."""
    views = row_views(op, x, y, out)
    threads = views.rows * views.columns // views.pack
    if threads == 0:
        return
    device_of(x).launch(
        pointwise_kernel(op, views.pack, (x.dtype, y.dtype, out.dtype)),
        Geometry(blocks=-(-threads // THREADS), threads=THREADS, overlap=True),
        [
            *(
                argument
                for tensor, strides in zip((x, y, out), views.strides, strict=True)
                for argument in (pointer(tensor), *longs(*strides))
            ),
            *integers(views.rows, views.inner, views.columns),
        ],
    )
