"""Launches of the linear kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import INT, POINTER, Argument, Geometry
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.cases import MODEL_SHAPES
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.packing import relay_kernel
from ninfer_runtime.ops.linear.schedule import (
    SKINNY_COLUMNS,
    WIDE_COLUMNS,
    Schedule,
    Wide,
    problem_of,
    x_rows_of,
)
from ninfer_runtime.ops.linear.tuning import choose
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS

if TYPE_CHECKING:
    from ninfer_runtime.device.cuda import CudaDevice


UNEVEN_SHAPE = (16, 320)
"""A shape whose K does not divide among warps: it takes the schedule for all other shapes."""


@dataclass(frozen=True, slots=True)
class PackedActivations:
    """Activations [T, K] in the order that a linear kernel reads, in device memory.

    Attributes:
        data: Address of the values, f16 or bf16.
        column_scale: Address of a float32 factor for each of the T.
        columns: T.
        x_rows: Rows that the values are laid out for.
    """

    data: int
    column_scale: int
    columns: int
    x_rows: int


def linear(x: Tensor, weight: Tensor | PackedWeight, out: Tensor) -> None:
    """See the contract in the package.

    More columns than a kernel takes are multiplied in turns, each of which reads the weight.
    """
    if not isinstance(weight, PackedWeight) or x.dtype is not DType.BF16:
        raise UnsupportedOpError("linear", "cuda", detail=f"{x!r}, {weight!r}")
    device = cast("CudaDevice", x.device)
    target = device.target
    most = WIDE_COLUMNS[-1] if target.has_wgmma else SKINNY_COLUMNS
    for begin in range(0, x.shape[0], most):
        end = min(begin + most, x.shape[0])
        with device.workspace.frame():
            packed = pack(device, x[begin:end], weight)
            multiply(device, packed, weight, out[begin:end])


def pack(device: CudaDevice, x: Tensor, weight: PackedWeight) -> PackedActivations:
    """Put activations into the order in which a weight's kernel reads them.

    Args:
        device: Where `x` lies; its workspace takes the result.
        x: [T, K], bf16, T at most `WIDE_COLUMNS[-1]`.
        weight: What it will be multiplied with.
    """
    T, K = x.shape
    x_rows = x_rows_of(T, device.target)
    records = weight.record_format.records(K)
    data = device.workspace.take(x_rows * records * 128)
    column_scale = device.workspace.take(x_rows * 4)
    arguments: list[Argument] = [
        (x.array.data.ptr, POINTER),
        (data, POINTER),
        (column_scale, POINTER),
        (T, INT),
        (K, INT),
        (row_stride(x), INT),
        (records, INT),
        (x_rows, INT),
    ]
    geometry = Geometry(x_rows, 256, overlap=True)
    device.launch(pack_kernel(weight.format, x_rows), geometry, arguments)
    return PackedActivations(data, column_scale, T, x_rows)


def multiply(
    device: CudaDevice,
    x: PackedActivations,
    weight: PackedWeight,
    out: Tensor,
    schedule: Schedule | None = None,
) -> None:
    """Multiply packed activations with a weight.

    Args:
        device: Where everything lies.
        x: What `pack` made for this weight.
        weight: [N, K].
        out: [T, N], fp32 or bf16.
        schedule: How; by default the one that `tuning` chooses.
    """
    problem = problem_of(weight.record_format, weight.shape, x.columns)
    target = device.target
    schedule = schedule or choose(problem, target)
    arguments: list[Argument] = [
        (weight.data.data.ptr, POINTER),
        (x.data, POINTER),
        (out.array.data.ptr, POINTER),
        (0 if weight.row_scale is None else weight.row_scale.data.ptr, POINTER),
        (x.column_scale, POINTER),
        (problem.tiles, INT),
        (weight.shape[0], INT),
        (x.columns, INT),
        (row_stride(out), INT),
        (problem.records, INT),
        (int(out.dtype is DType.FP32), INT),
    ]
    if isinstance(schedule, Wide):
        arguments += [(schedule.row_groups, INT), (schedule.stages(problem, target), INT)]
    geometry = schedule.geometry(problem, target)
    device.launch(schedule.kernel(weight.record_format), geometry, arguments)


def pack_kernel(weight_format: str, x_rows: int) -> Kernel:
    """The kernel that packs activations for a weight format and so many rows in memory."""
    tiles, words = x_rows > SKINNY_COLUMNS, weight_format == "bf16"
    return Kernel(
        "ops/linear/activations.cu",
        f"ninfer::pack_activations_kernel<{str(tiles).lower()}, {str(words).lower()}>",
    )


def kernels(target: Target) -> set[Kernel]:
    """The kernels that the models' matrices need, in every format and for up to 128 columns."""
    most = WIDE_COLUMNS[-1] if target.has_wgmma else SKINNY_COLUMNS
    found = {relay_kernel(record_format) for record_format in RECORD_FORMATS.values()}
    for record_format in RECORD_FORMATS.values():
        for shape in (*MODEL_SHAPES.values(), UNEVEN_SHAPE):
            for columns in (1, 4, SKINNY_COLUMNS, *WIDE_COLUMNS):
                if columns <= most:
                    schedule = choose(problem_of(record_format, shape, columns), target)
                    found.add(schedule.kernel(record_format))
                    found.add(pack_kernel(record_format.name, x_rows_of(columns, target)))
    return found


def row_stride(tensor: Tensor) -> int:
    """Elements from one row of a matrix to the next, whose elements follow one another.

    Raises:
        UnsupportedOpError: The elements of a row do not follow one another.
    """
    rows, elements = tensor.array.strides
    size = tensor.array.itemsize
    if elements != size and tensor.shape[1] > 1:
        raise UnsupportedOpError("linear", "cuda", detail=f"strided rows of {tensor!r}")
    return int(rows) // int(size) if tensor.shape[0] > 1 else tensor.shape[1]
