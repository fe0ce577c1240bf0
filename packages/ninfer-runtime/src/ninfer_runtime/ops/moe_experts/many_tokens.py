"""Launches for many tokens: slots sorted by expert, then products of tiles (grouped.cu).

Temporary memory for each of T · (A + 1) rows: 2 · D bytes of x, then 6 · I of products, then up to 4 · D
of results; what has been used up is free for what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ninfer_runtime.cuda.arguments import device_of, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, element_strides
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import COLUMNS, ROWS, RecordFormat
from ninfer_runtime.ops.moe_router import Routing

SORT_SOURCE, GROUPED_SOURCE = "ops/moe_experts/sort.cu", "ops/moe_experts/grouped.cu"
ROW_ALIGNMENT = 8
"""What the first row of an expert is a multiple of."""

WIDTH_ALIGNMENT = 256
"""What D is a multiple of."""

BLOCK_ROWS = 128
"""Rows of the weights that a block takes at once."""

PARTIAL_BYTES = 320 * 2**20
"""Memory for results before they are added up, above which they are made in two halves of D."""

_BARRIER_BYTES = 1024
_SHARED_ALIGNMENT = 1024


def sort_kernel() -> Kernel:
    """What sorts the slots by expert."""
    return Kernel(SORT_SOURCE, "ninfer::moe_sort_kernel")


def pack_kernel(dtype: DType, *, bf16: bool, columns: int) -> Kernel:
    """What puts rows in the order that the tensor cores read."""
    arguments = f"{ELEMENT_TYPES[dtype]}, {str(bf16).lower()}, {_pack_threads(columns)}"
    return Kernel(SORT_SOURCE, f"ninfer::moe_pack_kernel<{arguments}>")


@dataclass(frozen=True, slots=True)
class Grouped:
    """How the rows of each expert are multiplied with its matrix.

    Attributes:
        kernel: What does it.
        threads: Of a block.
        stages: Of the ring.
        shared_bytes: Of a block.
        blocks: On an SM.
    """

    kernel: Kernel
    threads: int
    stages: int
    shared_bytes: int
    blocks: int = 1


def tile_columns(target: Target) -> int:
    """Rows of activations that are multiplied together at most."""
    return 128 if target.has_wgmma else 64


def grouped(record_format: RecordFormat, target: Target, *, pairs: bool) -> Grouped:
    """The products on a kind of GPU; `pairs`: of gates and up matrices."""
    columns = tile_columns(target)
    exchange = 2 * columns * 32 * 4 if pairs else 0
    records = 2 if target.has_wgmma and record_format.name != "bf16" else 1
    stage = records * (columns * COLUMNS * 2 + BLOCK_ROWS // ROWS * record_format.record_bytes)
    name = str(pairs).lower()
    if not target.has_wgmma:
        stages = min(4, (target.shared_bytes - exchange) // stage)
        shared_bytes = exchange + stages * stage
        instance = f"ninfer::moe_grouped_by_warps_kernel<{record_format.number}, {name}, {stages}>"
        blocks = 2 if shared_bytes <= target.shared_for(2) else 1
        return Grouped(Kernel(GROUPED_SOURCE, instance), 256, stages, shared_bytes, blocks)
    exchange += _BARRIER_BYTES + _SHARED_ALIGNMENT
    stages = (target.shared_bytes - exchange) // stage
    instance = f"ninfer::moe_grouped_kernel<{record_format.number}, {records}, {name}>"
    return Grouped(Kernel(GROUPED_SOURCE, instance), 384, stages, exchange + stages * stage)


def reduce_kernel(dtype: DType) -> Kernel:
    """What adds up the results of a token's experts."""
    return Kernel(SORT_SOURCE, f"ninfer::moe_reduce_kernel<{ELEMENT_TYPES[dtype]}>")


def kernels(
    gate_ups: Iterable[RecordFormat], downs: Iterable[RecordFormat], target: Target
) -> Iterator[Kernel]:
    """What is needed for such formats."""
    yield sort_kernel()
    yield reduce_kernel(DType.BF16)
    for dtype, columns, formats, pairs in (
        (DType.BF16, 2048, gate_ups, True),
        (DType.FP32, 512, downs, False),
    ):
        for each in formats:
            yield pack_kernel(dtype, bf16=each.name == "bf16", columns=columns)
            yield grouped(each, target, pairs=pairs).kernel


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that are multiplied together: slots sorted by expert, behind them the tokens.

    Attributes:
        count: All of them.
        token_rows: The first row of the tokens.
        source: Address of the slot of each row.
        tiles: Addresses of the column tiles of the experts and of the shared one.
        numbers: Addresses of their numbers.
        factors: Address of a factor for each row.
    """

    count: int
    token_rows: int
    source: int
    tiles: tuple[int, int]
    numbers: tuple[int, int]
    factors: int


def run(
    x: Tensor,
    routing: Routing,
    gate_up: tuple[PackedWeight, PackedWeight],
    down: tuple[PackedWeight, PackedWeight],
    out: Tensor,
) -> None:
    """Compute a layer.

    Args:
        x: [T, D], bf16, rows aligned to 16 bytes.
        routing: Of the tokens.
        gate_up: Of the experts and of the shared one.
        down: Likewise.
        out: [T, D], rows aligned to 16 bytes.
    """
    device = device_of(x)
    (T, D), A = x.shape, routing.experts.shape[1]
    experts = (down[0].shape[0] // D, 1)
    with device.workspace.frame():
        place, rows = _sort(device, routing, T, A, experts[0])
        packed = device.empty((rows.count * D * 2,), DType.UINT8)
        _pack(device, x, rows, A, gate_up, packed)
        inner = max(weight.shape[1] for weight in down)
        products = device.empty((rows.count, inner), DType.FP32)
        for i, weight in enumerate(gate_up):
            _multiply(device, rows, i, packed, weight, experts[i], products, pairs=True)
        packed = device.empty((rows.count * inner * 2,), DType.UINT8)
        _pack(device, products, rows, 0, down, packed)
        width = D if rows.count * D * 4 <= PARTIAL_BYTES else D // 2
        del products
        partial = device.empty((rows.count, width), DType.FP32)
        for begin in range(0, D, width):
            for i, weight in enumerate(down):
                _multiply(device, rows, i, packed, weight, experts[i], partial, begin=begin)
            device.launch(
                reduce_kernel(out.dtype),
                Geometry(T, 256, overlap=True),
                [
                    (place, POINTER),
                    *map(pointer, (routing.weights, routing.shared_weights, partial)),
                    pointer(out[:, begin : begin + width]),
                    *longs(element_strides(out)[0]),
                    *integers(A, width, rows.token_rows),
                ],
            )


def _sort(device: CudaDevice, routing: Routing, T: int, A: int, experts: int) -> tuple[int, _Rows]:
    """The address of the row of each slot, and the rows."""
    slots, columns = T * A, tile_columns(device.target)
    used = min(experts, slots)
    token_rows = _aligned(slots + (ROW_ALIGNMENT - 1) * used)
    count = token_rows + _aligned(T)
    take = device.workspace.take
    place, source, factors = take(slots * 4), take(count * 4), take(count * 4)
    tiles = take((slots // columns + used) * 16), take(-(-T // columns) * 16)
    numbers = take(8)
    device.launch(
        sort_kernel(),
        Geometry(1, 1024, overlap=True),
        [
            pointer(routing.experts),
            *integers(A, T, experts, columns, token_rows, count),
            *((each, POINTER) for each in (place, source, *tiles, numbers)),
        ],
    )
    return place, _Rows(count, token_rows, source, tiles, (numbers, numbers + 4), factors)


def _pack(
    device: CudaDevice,
    x: Tensor,
    rows: _Rows,
    divisor: int,
    weights: tuple[PackedWeight, PackedWeight],
    packed: Tensor,
) -> None:
    """Put rows of x into the order for products with weights of the experts and of the shared one.

    Args:
        device: Where everything lies.
        x: Its row for a slot is that of its number divided by `divisor`, or with 0 that of the row.
        rows: Which.
        divisor: See there.
        weights: The shared expert's has rows of its own.
        packed: Takes the result.
    """
    ranges = [(0, rows.token_rows), (rows.token_rows, rows.count - rows.token_rows)]
    kinds = [(each.shape[1], each.format == "bf16") for each in weights]
    if kinds[0] == kinds[1]:
        ranges = [(0, rows.count)]
    for (first, number), (K, bf16), weight in zip(ranges, kinds, weights, strict=False):
        device.launch(
            pack_kernel(x.dtype, bf16=bf16, columns=K),
            Geometry(number, _pack_threads(K), overlap=True),
            [
                pointer(x),
                *longs(element_strides(x)[0]),
                (rows.source, POINTER),
                *integers(divisor, first),
                pointer(packed),
                (rows.factors, POINTER),
                *integers(K, weight.record_format.records(K)),
                *longs(rows.count),
            ],
        )


def _multiply(
    device: CudaDevice,
    rows: _Rows,
    kind: int,
    x: Tensor,
    weight: PackedWeight,
    experts: int,
    out: Tensor,
    *,
    begin: int = 0,
    pairs: bool = False,
) -> None:
    """Products of packed rows, fp32.

    Args:
        device: Where everything lies.
        rows: Which.
        kind: 0 for the rows of the experts, 1 for those of the shared one.
        x: The rows, packed.
        weight: The matrices of the experts, one below the other.
        experts: How many.
        out: Takes [rows, columns].
        begin: The first row of each matrix that is multiplied.
        pairs: The matrices are gates and up matrices, the result is what down matrices get.
    """
    record_format, target = weight.record_format, device.target
    how = grouped(record_format, target, pairs=pairs)
    row_scale = 0 if weight.row_scale is None else weight.row_scale.data.ptr
    matrix_rows = weight.shape[0] // experts
    multiplied = matrix_rows if pairs else out.shape[1]
    device.launch(
        how.kernel,
        Geometry(target.multiprocessors * how.blocks, how.threads, how.shared_bytes, overlap=True),
        [
            (weight.data.data.ptr, POINTER),
            (row_scale, POINTER),
            pointer(x),
            *((each, POINTER) for each in (rows.factors, rows.tiles[kind], rows.numbers[kind])),
            pointer(out),
            *longs(out.shape[1]),
            *integers(record_format.records(weight.shape[1])),
            *longs(rows.count),
            *integers(matrix_rows // ROWS, begin // ROWS, multiplied // BLOCK_ROWS, how.stages),
        ],
    )


def _aligned(rows: int) -> int:
    return -(-rows // ROW_ALIGNMENT) * ROW_ALIGNMENT


def _pack_threads(columns: int) -> int:
    return 64 if columns <= 512 else 256
