"""Launches for few tokens: two kernels that read each expert once (gate_up.cu, down.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_runtime.cuda.arguments import device_of, floats, integers, longs, pointer
from ninfer_runtime.cuda.launch import POINTER, Argument, Geometry
from ninfer_runtime.cuda.rows import element_strides
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.ops.linear.activations import pack
from ninfer_runtime.ops.linear.cuda import norm_arguments
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.weight_records import ROWS
from ninfer_runtime.ops.moe_experts.few_schedule import (
    COLUMNS,
    PADDING,
    Call,
    Formats,
    down_kernel,
    down_schedule,
    gate_up_kernel,
    gate_up_schedule,
    rows_kernel,
)
from ninfer_runtime.ops.moe_router import Routing
from ninfer_runtime.ops.product_input import DeferredNorm

Pair = tuple[PackedWeight, PackedWeight]
"""Matrices of the experts, and the one of the shared expert."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The matrices of a layer.

    Attributes:
        gate_up: Of the experts and of the shared one.
        down: Likewise.
    """

    gate_up: Pair
    down: Pair

    def call(self, tokens: int, per_token: int) -> Call:
        """What a call with so many tokens, and experts of each, is."""
        D = self.gate_up[0].shape[1]
        (rows, inner), (_, shared) = self.down[0].shape, self.down[1].shape
        return Call(tokens, D, per_token, rows // D, inner, shared)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Activations as B fragments: where they and their factors lie, and bytes from row to row."""

    data: int
    factors: int
    row_bytes: int
    record_bytes: int
    half_bytes: int
    norm: DeferredNorm | None = None


def run(
    x: Tensor,
    routing: Routing,
    mixture: Mixture,
    out: Tensor,
) -> None:
    """Compute a layer.

    Args:
        x: [T, D], bf16.
        routing: Of at most `MOST_TOKENS` tokens; T · A is at most `MAX_SLOTS`.
        mixture: Its matrices.
        out: [T, D].
    """
    device = device_of(x)
    call = mixture.call(x.shape[0], routing.experts.shape[1])
    gate_up, down = mixture.gate_up, mixture.down
    with device.workspace.frame():
        first = _rows(device, x, gate_up[0])
        same = _is_bf16(gate_up[0]) == _is_bf16(gate_up[1])
        rows = [first, first if same else _rows(device, x, gate_up[1])]
        sizes = [
            (count, weight.shape[1])
            for count, weight in zip((call.slots, call.tokens), down, strict=True)
        ]
        stored: list[Argument] = []
        for count, inner in sizes:
            stored.append((device.workspace.take(count * inner * 2), POINTER))
            stored.append((device.workspace.take(count * inner // ROWS * 4), POINTER))
        _multiply_gate_up(device, call, rows, routing, mixture, stored)
        _multiply_down(device, call, routing, down, stored, out)


def _rows(device: CudaDevice, x: Tensor, weight: PackedWeight) -> _Rows:
    """`x` as B fragments for a weight: as `linear` takes it if the rows are few."""
    T, K = x.shape
    if T <= COLUMNS:
        packed = pack(device, x, weight, takes_norms=True)
        block = packed.x_rows
        sizes = (64, block * 128, block * 64)
        return _Rows(packed.data, packed.column_scale, *sizes, norm=packed.norm)
    padded = -(-K // PADDING) * PADDING
    data, factors = device.workspace.take(T * padded * 2), device.workspace.take(T * 4)
    arguments = [
        pointer(x),
        *longs(element_strides(x)[0]),
        (data, POINTER),
        (factors, POINTER),
        *integers(K, padded),
    ]
    kernel = rows_kernel(bf16=_is_bf16(weight))
    device.launch(kernel, Geometry(T, 256, overlap=True), arguments)
    return _Rows(data, factors, padded * 2, 128, 64)


def _multiply_gate_up(
    device: CudaDevice,
    call: Call,
    rows: Sequence[_Rows],
    routing: Routing,
    mixture: Mixture,
    stored: list[Argument],
) -> None:
    formats = formats_of(mixture.gate_up)
    target = device.target
    schedule = gate_up_schedule(formats, call, target)
    blocks = target.multiprocessors
    num_bytes = schedule.gate_up_bytes(formats, call)
    *norm, scale = norm_arguments(rows[0].norm)
    shared_scale = rows[1].norm.scale if rows[1].norm else 0.0
    device.launch(
        gate_up_kernel(formats, schedule),
        Geometry(blocks, schedule.threads, num_bytes, overlap=True),
        [
            *_addresses(rows),
            *integers(rows[0].row_bytes, rows[0].record_bytes, rows[0].half_bytes),
            *norm,
            scale,
            *floats(shared_scale),
            pointer(routing.experts),
            *banks(mixture.gate_up),
            *stored,
            *integers(call.tokens, call.per_token, call.experts),
            *integers(*(each.records(call.width) for each in formats)),
            *integers(call.inner, call.shared),
            *integers(*(int(_is_bf16(weight)) for weight in mixture.down)),
            *integers(call.most_groups, _shared_blocks(formats, call, blocks)),
        ],
    )


def _shared_blocks(formats: Formats, call: Call, blocks: int) -> int:
    """How many blocks compute the shared expert, in proportion to the bytes."""
    cost = call.expected_units * formats[0].record_bytes
    shared_cost = call.shared_units * formats[1].record_bytes
    return max(1, min(round(blocks * shared_cost / (cost + shared_cost)), blocks - 1))


def _multiply_down(
    device: CudaDevice,
    call: Call,
    routing: Routing,
    down: Pair,
    stored: list[Argument],
    out: Tensor,
) -> None:
    formats = formats_of(down)
    schedule = down_schedule(formats, call, device.target)
    inner = [weight.shape[1] for weight in down]
    device.launch(
        down_kernel(formats, schedule, out.dtype),
        Geometry(
            call.width // ROWS, schedule.threads, schedule.down_bytes(formats, call), overlap=True
        ),
        [
            *map(pointer, routing.tensors),
            *banks(down),
            *stored,
            pointer(out),
            *longs(element_strides(out)[0]),
            *integers(call.tokens, call.per_token, call.experts),
            *integers(*(each.records(size) for each, size in zip(formats, inner, strict=True))),
            *integers(*inner),
            *integers(call.most_groups),
        ],
    )


def _is_bf16(weight: PackedWeight) -> bool:
    return weight.format == "bf16"


def formats_of(weights: Pair) -> Formats:
    """Formats of matrices."""
    return weights[0].record_format, weights[1].record_format


def _addresses(rows: Sequence[_Rows]) -> list[Argument]:
    return [(address, POINTER) for each in rows for address in (each.data, each.factors)]


def banks(weights: Pair) -> list[Argument]:
    """Records and factors of rows of each."""
    arguments: list[Argument] = []
    for weight in weights:
        row_scale = 0 if weight.row_scale is None else weight.row_scale.data.ptr
        arguments += [(weight.data.data.ptr, POINTER), (row_scale, POINTER)]
    return arguments
