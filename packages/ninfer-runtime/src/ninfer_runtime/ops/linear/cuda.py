"""Launches of the linear kernels."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_runtime.cuda.arguments import device_of, floats, integers
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import INT, POINTER, Argument
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear import Weight, split_columns
from ninfer_runtime.ops.linear.activations import most_columns, pack, pack_kernel, row_stride
from ninfer_runtime.ops.linear.cases import ADDED_SHAPES, MODEL_SHAPES, RULED_SHAPES
from ninfer_runtime.ops.linear.library import dequantize_kernel, multiply_decoded
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.packing import relay_kernel
from ninfer_runtime.ops.linear.schedule import (
    SKINNY_COLUMNS,
    WIDE_COLUMNS,
    Schedule,
    Skinny,
    Wide,
    problem_of,
)
from ninfer_runtime.ops.linear.tuning import choose, decodes_first
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS
from ninfer_runtime.ops.product_input import DeferredNorm, PackedActivations

NO_SUMS: tuple[Argument, ...] = (
    *[(0, POINTER)] * 2,
    *floats(0),
    *[(0, POINTER)] * 3,
)
"""What a kernel takes that stores its product as it is."""

MOST_SUMS = 320
"""Row tiles of a product that may be added to a residual; as in skinny.cu."""

UNEVEN_SHAPE = (16, 320)
"""A shape whose K does not divide among warps: it takes the schedule for all other shapes."""


def linear(x: Tensor, weight: Weight, out: Tensor) -> None:
    """See the contract in the package.

    More columns than a kernel takes are multiplied in turns, each of which reads the weight, as long
    as that takes less time than to decode the weight to memory.
    """
    _multiply_all(x, [(weight, out)])


def stacked_linear(x: Tensor, out: Tensor, *weights: Weight) -> None:
    """See the contract in the package.

    Rows are packed once for all weights. The products run beside one another: each starts when all
    blocks of the one before have what they need of x. So the largest comes last, and the small ones
    before it end while it runs.
    """
    _multiply_all(x, list(zip(weights, split_columns(out, weights), strict=True)))


def multiply(
    device: CudaDevice,
    x: PackedActivations,
    weight: PackedWeight,
    out: Tensor,
    schedule: Schedule | None = None,
    *,
    beside: bool = False,
    sums: Sequence[Argument] = (),
) -> None:
    """Multiply packed activations with a weight.

    Args:
        device: Where everything lies.
        x: What `pack` made for this weight.
        weight: [N, K].
        out: [T, N], fp32 or bf16.
        schedule: How; by default the one that `tuning` chooses.
        beside: The launch before this one multiplies the same `x`: do not wait for its end.
        sums: From `sum_arguments`, if the product is to be added to a residual in place of `out`.
    """
    problem = problem_of(weight.record_format, weight.shape, x.columns)
    target = device.target
    schedule = schedule or choose(problem, target)
    if sums and isinstance(schedule, Skinny):
        schedule = schedule.for_sums()
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
        arguments += [*integers(schedule.row_groups, schedule.stages(problem, target), beside)]
        kernel = schedule.kernel(weight.record_format)
    else:
        arguments += [*integers(beside), *_norm_arguments(x.norm), *(sums or NO_SUMS)]
        kernel = schedule.kernel(weight.record_format, sums=bool(sums))
    device.launch(kernel, schedule.geometry(problem, target), arguments)


def _norm_arguments(norm: DeferredNorm | None) -> list[Argument]:
    if norm is None:
        return [(0, POINTER), *integers(0), *floats(0, 0, 0)]
    return [
        (norm.squares, POINTER),
        *integers(norm.count),
        *floats(norm.inverse_size, norm.eps, norm.scale),
    ]


def kernels(target: Target) -> set[Kernel]:
    """The kernels that the models' matrices need, in every format and for any number of columns."""
    found = {pack_kernel(bf16=False), pack_kernel(bf16=True)}
    for record_format in RECORD_FORMATS.values():
        found |= {relay_kernel(record_format), dequantize_kernel(record_format)}
        for shape in (*MODEL_SHAPES.values(), *RULED_SHAPES.values(), UNEVEN_SHAPE):
            for columns in (1, 4, SKINNY_COLUMNS, *WIDE_COLUMNS):
                if columns <= most_columns(target):
                    problem = problem_of(record_format, shape, columns)
                    schedule = choose(problem, target)
                    found.add(schedule.kernel(record_format))
                    if isinstance(schedule, Skinny) and shape in ADDED_SHAPES:
                        found.add(schedule.for_sums().kernel(record_format, sums=True))
    return found


def _multiply_all(x: Tensor, products: Sequence[tuple[Weight, Tensor]]) -> None:
    """Products of the same rows with several weights."""
    device, T = device_of(x), x.shape[0]
    target = device.target
    packed_products = []
    for weight, out in products:
        if not isinstance(weight, PackedWeight) or x.dtype is not DType.BF16:
            raise UnsupportedOpError("linear", "cuda", detail=f"{x!r}, {weight!r}")
        if decodes_first(weight.record_format, T, target):
            multiply_decoded(device, x, weight, out)
        else:
            packed_products.append((weight, out))
    packed_products.sort(key=lambda product: product[0].num_bytes)
    if len(packed_products) > 2:  # the smallest have few blocks: they do not go first
        packed_products.insert(0, packed_products.pop(-2))
    most = most_columns(target)
    for begin in range(0, T, most) if packed_products else ():
        rows = x if most >= T else x[begin : begin + most]
        turn = [(weight, out[begin : begin + most]) for weight, out in packed_products]
        _multiply_packed(device, rows, turn)


def _multiply_packed(
    device: CudaDevice, x: Tensor, products: Sequence[tuple[PackedWeight, Tensor]]
) -> None:
    """Products of as many rows as kernels take at once."""
    with device.workspace.frame():
        packed: dict[bool, PackedActivations] = {}
        for weight, _ in products:
            bf16 = weight.format == "bf16"
            if bf16 not in packed:
                packed[bf16] = pack(device, x, weight, takes_norms=True)
        for i, (weight, out) in enumerate(products):
            multiply(device, packed[weight.format == "bf16"], weight, out, beside=i > 0)
