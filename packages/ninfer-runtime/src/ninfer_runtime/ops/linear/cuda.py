"""Launches of the linear kernels."""

from __future__ import annotations

from collections.abc import Sequence

from ninfer_runtime.cuda.arguments import device_of, floats, integers, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import INT, POINTER, Argument
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear import Weight, split_columns
from ninfer_runtime.ops.linear.activations import most_columns, pack, pack_kernel, row_stride
from ninfer_runtime.ops.linear.cases import ADDED_SHAPES, MODEL_SHAPES, RULED_SHAPES, STACKS
from ninfer_runtime.ops.linear.epilogue import NULL, STORED, Epilogue
from ninfer_runtime.ops.linear.exchange import exchange_address
from ninfer_runtime.ops.linear.library import dequantize_kernel, multiply_decoded
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.packing import relay_kernel
from ninfer_runtime.ops.linear.schedule import (
    SKINNY_COLUMNS,
    WIDE_COLUMNS,
    Medium,
    Result,
    Schedule,
    Skinny,
    Wide,
    problem_of,
)
from ninfer_runtime.ops.linear.stacked import MOST_PARTS, Stacked, choose_stacked
from ninfer_runtime.ops.linear.tuning import choose, decodes_first
from ninfer_runtime.ops.linear.weight_records import RECORD_FORMATS
from ninfer_runtime.ops.product_input import DeferredNorm, PackedActivations

MOST_SUMS = 320
"""Row tiles of a product that may be added to a residual; as in skinny_product.cuh."""

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

    Rows are packed once for all weights. One launch multiplies with two or three of them, where there
    is such a kernel. Else the products run beside one another: each starts when all blocks of the one
    before have what they need of x.
    """
    _multiply_all(x, list(zip(weights, split_columns(out, weights), strict=True)))


def multiply(
    device: CudaDevice,
    x: PackedActivations,
    weight: PackedWeight,
    out: Tensor | None,
    schedule: Schedule | None = None,
    *,
    beside: bool = False,
    epilogue: Epilogue = STORED,
) -> None:
    """Multiply packed activations with a weight.

    Args:
        device: Where everything lies.
        x: What `pack` made for this weight.
        weight: [N, K].
        out: [T, N], fp32 or bf16, [T, N / 2] of gated products; None if nothing goes there.
        schedule: How; by default the one that `tuning` chooses.
        beside: The launch before this one multiplies the same `x`: do not wait for its end.
        epilogue: What becomes of the product.
    """
    problem = problem_of(weight.record_format, weight.shape, x.columns)
    target = device.target
    schedule = schedule or choose(problem, target)
    result = epilogue.result
    if result is Result.ADDED and isinstance(schedule, Skinny):
        schedule = schedule.for_sums()
    arguments: list[Argument] = [
        (weight.data.data.ptr, POINTER),
        (x.data, POINTER),
        (0, POINTER) if out is None else pointer(out),
        (0 if weight.row_scale is None else weight.row_scale.data.ptr, POINTER),
        (x.column_scale, POINTER),
        (problem.tiles, INT),
        (weight.shape[0], INT),
        (x.columns, INT),
        (0 if out is None else row_stride(out), INT),
        (problem.records, INT),
        (int(out is not None and out.dtype is DType.FP32), INT),
    ]
    if isinstance(schedule, Wide):
        arguments += [*integers(schedule.row_groups, schedule.stages(problem, target), beside)]
    elif isinstance(schedule, Medium):
        arguments += [*integers(beside)]
    else:
        arguments += [*integers(beside), *norm_arguments(x.norm), *epilogue.residual]
    arguments += epilogue.packed
    if isinstance(schedule, Skinny):
        exchanged = exchange_address(device) if schedule.splits > 1 else 0
        arguments.append((exchanged, POINTER))
    kernel = schedule.kernel(weight.record_format, result)
    device.launch(kernel, schedule.geometry(problem, target), arguments)


def multiply_stacked(
    device: CudaDevice,
    packed: dict[bool, PackedActivations],
    products: Sequence[tuple[PackedWeight, Tensor]],
    stacked: Stacked,
) -> None:
    """Multiply packed activations with several weights in one launch.

    Args:
        device: Where everything lies.
        packed: What `pack` made of the same rows for weights in bf16 (True) and for others (False).
        products: Weights [N_i, K] and results [T, N_i], columns of one matrix.
        stacked: How.
    """
    target = device.target
    x = packed[min(packed)]
    words = packed[True].data if True in packed else 0
    problems = [problem_of(weight.record_format, weight.shape, x.columns) for weight, _ in products]
    shares = stacked.shares(problems, target)
    out = products[0][1]
    arguments: list[Argument] = [
        (x.data, POINTER),
        (words, POINTER),
        (x.column_scale, POINTER),
        *integers(x.columns, row_stride(out), problems[0].records, out.dtype is DType.FP32),
        *norm_arguments(x.norm),
        *integers(shares[0], shares[0] + shares[1]),
    ]
    for (weight, result), problem in zip(products, problems, strict=True):
        arguments += [
            (weight.data.data.ptr, POINTER),
            pointer(result),
            (0 if weight.row_scale is None else weight.row_scale.data.ptr, POINTER),
            *integers(problem.tiles, weight.shape[0]),
        ]
    for _ in range(MOST_PARTS - len(products)):
        arguments += [NULL, NULL, NULL, *integers(0, 0)]
    device.launch(stacked.kernel(problems), stacked.geometry(problems, target), arguments)


def norm_arguments(norm: DeferredNorm | None) -> list[Argument]:
    """What a kernel takes to finish a norm, the scale last."""
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
                        found.add(schedule.for_sums().kernel(record_format, Result.ADDED))
    for stack in STACKS:
        for columns in (1, 4, SKINNY_COLUMNS):
            problems = [problem_of(RECORD_FORMATS[name], shape, columns) for name, shape in stack]
            stacked = choose_stacked(problems, target)
            if stacked is not None:
                found.add(stacked.kernel(problems))
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
        problems = [problem_of(w.record_format, w.shape, x.shape[0]) for w, _ in products]
        stacked = choose_stacked(problems, device.target)
        if stacked is not None:
            multiply_stacked(device, packed, products, stacked)
            return
        for i, (weight, out) in enumerate(_by_turns(products)):
            multiply(device, packed[weight.format == "bf16"], weight, out, beside=i > 0)


def _by_turns(
    products: Sequence[tuple[PackedWeight, Tensor]],
) -> Sequence[tuple[PackedWeight, Tensor]]:
    """The order of launches that run beside one another, of products from the smallest on.

    The largest comes last, and the small ones before it end while it runs; the smallest have few
    blocks, so that they do not go first.
    """
    if len(products) < 3:
        return products
    return [products[-2], *products[:-2], products[-1]]
