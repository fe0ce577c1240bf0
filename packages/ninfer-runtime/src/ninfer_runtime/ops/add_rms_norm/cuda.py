"""Launch of `add_rms_norm` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, floats, integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.row_schedule import RowSchedule, model_schedules, row_schedule
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, is_contiguous, row_views
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError

WIDTHS = (128, 256, 512, 1024)


def kernel(schedule: RowSchedule, dtypes: tuple[DType, ...]) -> Kernel:
    """The instance for a schedule and the dtypes of x, y, weight and out."""
    types = ", ".join(ELEMENT_TYPES[dtype] for dtype in dtypes)
    numbers = f"{schedule.pack}, {schedule.packs}, {schedule.threads}"
    return Kernel(
        "ops/add_rms_norm/add_rms_norm.cu", f"ninfer::add_rms_norm_row_kernel<{numbers}, {types}>"
    )


def kernels(target: Target) -> list[Kernel]:
    """What models need, on any GPU."""
    return [kernel(each, (DType.BF16,) * 4) for each in model_schedules(WIDTHS)]


def add_rms_norm(
    x: Tensor, y: Tensor, weight: Tensor, out: Tensor, *, eps: float, unit_offset: bool
) -> None:
    """See the contract in the package."""
    op = "add_rms_norm"
    T, D = x.shape
    pack = min(row_views(op, x, y, out).pack, row_views(op, weight).pack)
    schedule = row_schedule(D, pack, WIDTHS)
    if schedule is None or not all(map(is_contiguous, (x, y, out))):
        raise UnsupportedOpError(op, x.device.kind, detail=f"{x!r}, {y!r}, {out!r}")
    if T == 0:
        return
    device_of(x).launch(
        kernel(schedule, (x.dtype, y.dtype, weight.dtype, out.dtype)),
        Geometry(blocks=T, threads=schedule.block_threads, overlap=True),
        [
            pointer(x),
            pointer(y),
            pointer(weight),
            pointer(out),
            *integers(D),
            *floats(eps, float(unit_offset)),
        ],
    )
