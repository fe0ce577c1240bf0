"""Launch of `gated_rms_norm` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, floats, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.row_schedule import RowSchedule, row_schedule
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, row_views
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError

WIDTHS = (32,)


def kernel(schedule: RowSchedule, dtypes: tuple[DType, ...]) -> Kernel:
    """The instance for a schedule and the dtypes of x, gate, weight and out."""
    types = ", ".join(ELEMENT_TYPES[dtype] for dtype in dtypes)
    return Kernel(
        "ops/gated_rms_norm/gated_rms_norm.cu",
        f"ninfer::gated_rms_norm_row_kernel<{schedule.pack}, {schedule.packs}, {types}>",
    )


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU: heads of 128."""
    return [kernel(RowSchedule(8, 1, 32), (DType.BF16,) * 4)]


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, out: Tensor, *, eps: float) -> None:
    """See the contract in the package."""
    op = "gated_rms_norm"
    views = row_views(op, x, gate, out)
    pack = min(views.pack, row_views(op, weight).pack)
    schedule = row_schedule(views.columns, pack, WIDTHS)
    if schedule is None:
        raise UnsupportedOpError(op, x.device.kind, detail=f"{views.columns} columns")
    if views.rows == 0:
        return
    x_strides, gate_strides, out_strides = views.strides
    device_of(x).launch(
        kernel(schedule, (x.dtype, gate.dtype, weight.dtype, out.dtype)),
        Geometry(
            blocks=-(-views.rows // schedule.rows_per_block),
            threads=schedule.block_threads,
            overlap=True,
        ),
        [
            pointer(x),
            *longs(*x_strides),
            pointer(gate),
            *longs(*gate_strides),
            pointer(weight),
            pointer(out),
            *longs(*out_strides),
            *integers(views.rows, views.inner, views.columns),
            *floats(eps),
        ],
    )
