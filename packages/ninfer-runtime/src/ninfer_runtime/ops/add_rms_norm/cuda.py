"""Launch of `add_rms_norm` on an NVIDIA GPU."""

from __future__ import annotations

from ninfer_runtime.cuda.arguments import device_of, floats, integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.row_schedule import RowSchedule, model_schedules, rows_schedule
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, PACK, is_contiguous, row_views
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear import Weight
from ninfer_runtime.ops.linear.activations import (
    is_packable,
    pack,
    packing_arguments,
)
from ninfer_runtime.ops.linear.cuda import MOST_SUMS, linear, multiply
from ninfer_runtime.ops.linear.epilogue import added
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.schedule import SKINNY_COLUMNS
from ninfer_runtime.ops.linear.weight_records import ROWS
from ninfer_runtime.ops.moe_experts import ExpertsProduct, ExpertWeights
from ninfer_runtime.ops.moe_experts.cuda import mixture_of
from ninfer_runtime.ops.moe_experts.mixture import run, schedule_of
from ninfer_runtime.ops.product_input import ProductInput

WIDTHS = (128, 256, 640, 1024)


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
    schedule = rows_schedule(T, D, pack, WIDTHS)
    if schedule is None or not all(map(is_contiguous, (x, y, out))):
        raise UnsupportedOpError(op, x.device.kind, detail=f"{x!r}, {y!r}, {out!r}")
    if T == 0:
        return
    packs = schedule.pack == PACK and is_packable(out)
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
            *packing_arguments(out, f16=packs, bf16=packs),
        ],
    )


def add_product(
    x: Tensor,
    rows: Tensor,
    matrix: Weight,
    weight: Tensor,
    out: ProductInput,
    *,
    eps: float,
    unit_offset: bool,
) -> None:
    """See the contract of `add_product_rms_norm` in the package.

    For few rows the product's kernel adds, and the next products finish the norm.
    """
    device = device_of(x)
    if isinstance(matrix, PackedWeight) and _takes_sums(x, weight, out):
        with device.workspace.frame():
            packed = pack(device, rows, matrix, takes_norms=True)
            sums = added(x, weight, out, offset=float(unit_offset), eps=eps)
            multiply(device, packed, matrix, None, epilogue=sums)
        return
    y = device.empty(x.shape, x.dtype)
    linear(rows, matrix, y)
    add_rms_norm(x, y, weight, out, eps=eps, unit_offset=unit_offset)


def add_experts(
    x: Tensor,
    rows: Tensor,
    router: Tensor,
    gate_up: Weight,
    down: Weight,
    shared_gate_up: Weight,
    shared_down: Weight,
    weight: Tensor,
    out: ProductInput,
    *,
    experts_per_token: int,
    eps: float,
    unit_offset: bool,
) -> None:
    """See the contract of `add_product_rms_norm` in the package; for few rows as `add_product`."""
    mixture = mixture_of(rows, gate_up, down, shared_gate_up, shared_down)
    if mixture is not None and _takes_sums(x, weight, out):
        schedule = schedule_of(rows, router, mixture, experts_per_token)
        if schedule is not None:
            sums = added(x, weight, out, offset=float(unit_offset), eps=eps)
            run(rows, router, mixture, experts_per_token, schedule, sums)
            return
    weights = ExpertWeights(gate_up, down, shared_gate_up, shared_down)
    y = ExpertsProduct(rows, router, weights, experts_per_token).compute()
    add_rms_norm(x, y, weight, out, eps=eps, unit_offset=unit_offset)


def _takes_sums(x: Tensor, weight: Tensor, out: ProductInput) -> bool:
    """Whether a product's kernel may add to `x` and leave the norm to the next products."""
    T, D = x.shape
    return (
        0 < T <= SKINNY_COLUMNS
        and D <= MOST_SUMS * ROWS
        and is_packable(out)
        and all(each.dtype is DType.BF16 and is_contiguous(each) for each in (x, weight, out))
    )
