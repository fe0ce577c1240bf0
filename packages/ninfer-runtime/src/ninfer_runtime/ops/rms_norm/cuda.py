"""Launch of `rms_norm` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, floats, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.row_schedule import RowSchedule, model_schedules, rows_schedule
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, PACK, row_views
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.activations import is_packable, packing_arguments

WIDTHS = (32, 128, 256, 640, 1024)


def kernel(schedule: RowSchedule, dtypes: tuple[DType, ...]) -> Kernel:
    """The instance for a schedule and the dtypes of x, weight and out."""
    types = ", ".join(ELEMENT_TYPES[dtype] for dtype in dtypes)
    numbers = f"{schedule.pack}, {schedule.packs}, {schedule.threads}"
    return Kernel("ops/rms_norm/rms_norm.cu", f"ninfer::rms_norm_row_kernel<{numbers}, {types}>")


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU: rows of hidden states."""
    return [kernel(each, (DType.BF16,) * 3) for each in model_schedules(WIDTHS)]


def rms_norm(x: Tensor, weight: Tensor, out: Tensor, *, eps: float, unit_offset: bool) -> None:
    """See the contract in the package."""
    views = row_views("rms_norm", x, out)
    weight_views = row_views("rms_norm", weight)
    pack = min(views.pack, weight_views.pack)
    schedule = rows_schedule(views.rows, views.columns, pack, WIDTHS)
    if schedule is None:
        raise UnsupportedOpError("rms_norm", x.device.kind, detail=f"{views.columns} columns")
    if views.rows == 0:
        return
    (x_strides, out_strides) = views.strides
    packs = schedule.pack == PACK and is_packable(out)
    device_of(x).launch(
        kernel(schedule, (x.dtype, weight.dtype, out.dtype)),
        Geometry(
            blocks=-(-views.rows // schedule.rows_per_block),
            threads=schedule.block_threads,
            overlap=True,
        ),
        [
            pointer(x),
            *longs(*x_strides),
            pointer(weight),
            pointer(out),
            *longs(*out_strides),
            *integers(views.rows, views.inner, views.columns),
            *floats(eps, float(unit_offset)),
            *packing_arguments(out, f16=packs, bf16=packs),
        ],
    )
