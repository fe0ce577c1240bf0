"""Launches for few tokens: two kernels that read each expert once (gate_up.cu, down.cu)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ninfer_runtime.cuda.arguments import device_of, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Argument, Geometry
from ninfer_runtime.cuda.rows import ELEMENT_TYPES, element_strides
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.cuda import CudaDevice
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.activations import pack
from ninfer_runtime.ops.linear.packed_weight import PackedWeight
from ninfer_runtime.ops.linear.schedule import x_rows_of
from ninfer_runtime.ops.linear.weight_records import ROWS, RecordFormat
from ninfer_runtime.ops.moe_router import Routing

GATE_UP_SOURCE, DOWN_SOURCE = "ops/moe_experts/gate_up.cu", "ops/moe_experts/down.cu"
COLUMNS = 8
MAX_SLOTS, MOST_TOKENS = 512, 64
TOKEN_CLASSES = (1, 2, 4, 8, MOST_TOKENS)
PADDING = 128
"""What rows of activations are padded to: no format pads its matrices to more."""

_BARRIER_BYTES = 1024

Formats = tuple[RecordFormat, RecordFormat]
"""Of the experts' matrices, and of the shared expert's."""


@dataclass(frozen=True, slots=True)
class Call:
    """Sizes of a call.

    Attributes:
        tokens: T, at most `MOST_TOKENS`.
        width: D.
        per_token: A.
        experts: E.
        inner: I, rows of an expert's gate.
        shared: S, rows of the shared expert's gate.
    """

    tokens: int
    width: int
    per_token: int
    experts: int
    inner: int
    shared: int

    @property
    def of_class(self) -> Call:
        """The largest call that has the same schedules: there are few kernels."""
        return replace(self, tokens=next(most for most in TOKEN_CLASSES if self.tokens <= most))

    @property
    def slots(self) -> int:
        """T · A."""
        return self.tokens * self.per_token

    @property
    def most_groups(self) -> int:
        """The most groups of up to `COLUMNS` slots of one expert."""
        used = min(self.experts, self.slots)
        return (self.slots + (COLUMNS - 1) * used) // COLUMNS

    @property
    def group_bytes(self) -> int:
        """Shared memory for the groups."""
        return 4 * (1 + 2 * self.most_groups + 3 * self.experts) + 16 * self.most_groups

    @property
    def expected_units(self) -> float:
        """Row tiles of gates that are multiplied if experts are chosen evenly."""
        unused = (1 - self.per_token / self.experts) ** self.tokens
        return self.experts * (1 - unused) * self.inner / ROWS

    @property
    def shared_units(self) -> int:
        """Row tiles of the shared gate, each for every group of tokens."""
        return self.shared // ROWS * -(-self.tokens // COLUMNS)

    @property
    def product_bytes(self) -> int:
        """Shared memory for a copy of the products and their factors."""
        sizes = (self.slots, self.inner), (self.tokens, self.shared)
        return sum(rows * (2 * size + 64 + size // ROWS * 4) for rows, size in sizes)

    def x_bytes(self, target: Target) -> int:
        """Shared memory for a copy of x."""
        return x_rows_of(self.tokens, target) * -(-self.width // PADDING) * PADDING * 2


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a kernel is built.

    Attributes:
        warps: Of a block.
        stage: Records of a matrix in a stage of a warp's ring.
        stages: Of a ring.
        blocks: Blocks on an SM.
        team: Warps that split K of a gate.
        copied: Whether blocks copy the activations that they multiply to shared memory.
    """

    warps: int
    stage: int
    stages: int
    blocks: int = 1
    team: int = 1
    copied: bool = False

    def ring_bytes(self, formats: Formats) -> int:
        """Shared memory of the rings of a block that streams one matrix."""
        stage = max(self.stage * formats[0].record_bytes, formats[1].record_bytes)
        return self.warps * self.stages * stage

    def gate_up_bytes(self, formats: Formats, call: Call, target: Target) -> int:
        """Shared memory of a block of the first kernel."""
        sums = 2 * self.warps * 2 * min(call.tokens, COLUMNS) * ROWS * 4 if self.team > 1 else 0
        rings = _BARRIER_BYTES + 2 * self.ring_bytes(formats)
        return rings + self.x_bytes(call, target) + sums + call.group_bytes

    def x_bytes(self, call: Call, target: Target) -> int:
        """Shared memory for x in the first kernel."""
        return call.x_bytes(target) if self.copied else 0

    def down_bytes(self, formats: Formats, call: Call) -> int:
        """Shared memory of a block of the second kernel."""
        partial = (call.slots + call.tokens) * (ROWS + 1) * 4
        rings = _BARRIER_BYTES + self.ring_bytes(formats)
        copied = call.product_bytes if self.copied else 0
        return rings + copied + partial + call.group_bytes


GATE_UP = (
    Schedule(16, 4, 2),
    Schedule(16, 2, 2),
    Schedule(16, 1, 2),
    Schedule(8, 2, 2),
    Schedule(8, 1, 2),
    Schedule(8, 1, 1),
)
DOWN = (
    Schedule(16, 4, 2),
    Schedule(16, 2, 2),
    Schedule(16, 1, 2),
    Schedule(8, 1, 2),
    Schedule(8, 1, 1),
)
ONE_TOKEN_DOWN = (Schedule(12, 4, 2, 2), *DOWN)
"""Schedules in the order of preference; the first that fits is taken."""


def team_of(call: Call, target: Target) -> int:
    """Warps that split a unit: as many as would otherwise be without work."""
    warps = GATE_UP[0].warps * target.multiprocessors
    units = call.expected_units + call.shared_units
    return next((team for team in (4, 2) if team * units <= warps), 1)


def gate_up_schedule(formats: Formats, call: Call, target: Target) -> Schedule:
    """The schedule of the first kernel.

    Raises:
        UnsupportedOpError: None fits the device.
    """
    most = call.of_class
    copied = most.tokens <= COLUMNS and 2 * most.x_bytes(target) <= target.shared_bytes
    wanted = [replace(each, team=team_of(most, target), copied=copied) for each in GATE_UP]
    return _first_that_fits(most, target, wanted, lambda s: s.gate_up_bytes(formats, most, target))


def down_schedule(formats: Formats, call: Call, target: Target) -> Schedule:
    """The schedule of the second kernel.

    Raises:
        UnsupportedOpError: None fits the device.
    """
    most = call.of_class
    copied = most.tokens <= COLUMNS and 2 * most.product_bytes <= target.shared_bytes
    choices = ONE_TOKEN_DOWN if most.tokens == 1 else DOWN
    wanted = [replace(each, copied=copied) for each in choices]
    return _first_that_fits(most, target, wanted, lambda s: s.down_bytes(formats, most))


def _first_that_fits(
    call: Call,
    target: Target,
    wanted: Sequence[Schedule],
    shared_bytes: Callable[[Schedule], int],
) -> Schedule:
    """The first schedule whose blocks have room."""
    for schedule in wanted:
        if shared_bytes(schedule) <= target.shared_for(schedule.blocks):
            return schedule
    raise UnsupportedOpError("moe_experts", "cuda", detail=f"{call} on {target}")


def gate_up_kernel(formats: Formats, schedule: Schedule) -> Kernel:
    """The first kernel."""
    arguments = (
        *(each.number for each in formats),
        schedule.warps,
        schedule.team,
        schedule.stage,
        schedule.stages,
        schedule.blocks,
        str(schedule.copied).lower(),
    )
    return Kernel(GATE_UP_SOURCE, f"ninfer::moe_gate_up_kernel<{', '.join(map(str, arguments))}>")


def down_kernel(formats: Formats, schedule: Schedule, dtype: DType) -> Kernel:
    """The second kernel."""
    arguments = (
        *(each.number for each in formats),
        schedule.warps,
        schedule.stage,
        schedule.stages,
        schedule.blocks,
        str(schedule.copied).lower(),
        ELEMENT_TYPES[dtype],
    )
    return Kernel(DOWN_SOURCE, f"ninfer::moe_down_kernel<{', '.join(map(str, arguments))}>")


def rows_kernel(*, bf16: bool) -> Kernel:
    """The kernel that puts rows into the order of B fragments."""
    return Kernel(GATE_UP_SOURCE, f"ninfer::moe_rows_kernel<{str(bf16).lower()}>")


def kernels(
    pairs: Iterable[tuple[Formats, Formats]], one: Call, target: Target
) -> Iterator[Kernel]:
    """What is needed for formats of gate_up and down, and calls like one but for the tokens."""
    for gate_up, down in pairs:
        for tokens in TOKEN_CLASSES:
            call = replace(one, tokens=tokens)
            yield gate_up_kernel(gate_up, gate_up_schedule(gate_up, call, target))
            yield down_kernel(down, down_schedule(down, call, target), DType.BF16)
    for bf16 in (False, True):
        yield rows_kernel(bf16=bf16)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Activations as B fragments: where they and their factors lie, and bytes from row to row."""

    data: int
    factors: int
    row_bytes: int
    record_bytes: int
    half_bytes: int


def run(
    x: Tensor,
    routing: Routing,
    gate_up: tuple[PackedWeight, PackedWeight],
    down: tuple[PackedWeight, PackedWeight],
    out: Tensor,
) -> None:
    """Compute a layer.

    Args:
        x: [T, D], bf16.
        routing: Of at most `MOST_TOKENS` tokens; T · A is at most `MAX_SLOTS`.
        gate_up: Of the experts and of the shared one.
        down: Likewise.
        out: [T, D].
    """
    device = device_of(x)
    T, D = x.shape
    A, E = routing.experts.shape[1], down[0].shape[0] // D
    call = Call(T, D, A, E, down[0].shape[1], down[1].shape[1])
    with device.workspace.frame():
        first = _rows(device, x, gate_up[0])
        same = _is_bf16(gate_up[0]) == _is_bf16(gate_up[1])
        rows = [first, first if same else _rows(device, x, gate_up[1])]
        products = [
            (device.workspace.take(count * weight.shape[1] * 2), POINTER)
            for count, weight in zip((call.slots, T), down, strict=True)
        ]
        factors = [
            (device.workspace.take(count * weight.shape[1] // ROWS * 4), POINTER)
            for count, weight in zip((call.slots, T), down, strict=True)
        ]
        stored: list[Argument] = [products[0], factors[0], products[1], factors[1]]
        _multiply_gate_up(device, call, rows, routing, gate_up, down, stored)
        _multiply_down(device, call, routing, down, stored, out)


def _rows(device: CudaDevice, x: Tensor, weight: PackedWeight) -> _Rows:
    """`x` as B fragments for a weight: as `linear` takes it if the rows are few."""
    T, K = x.shape
    if T <= COLUMNS:
        packed = pack(device, x, weight)
        block = packed.x_rows
        return _Rows(packed.data, packed.column_scale, 64, block * 128, block * 64)
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
    rows: list[_Rows],
    routing: Routing,
    gate_up: tuple[PackedWeight, PackedWeight],
    down: tuple[PackedWeight, PackedWeight],
    stored: list[Argument],
) -> None:
    formats = _formats(gate_up)
    target = device.target
    schedule = gate_up_schedule(formats, call, target)
    D = gate_up[0].shape[1]
    blocks = target.multiprocessors * schedule.blocks
    cost = call.expected_units * formats[0].record_bytes
    shared_cost = call.shared_units * formats[1].record_bytes
    shared_blocks = max(1, min(round(blocks * shared_cost / (cost + shared_cost)), blocks - 1))
    device.launch(
        gate_up_kernel(formats, schedule),
        Geometry(
            blocks,
            schedule.warps * 32,
            schedule.gate_up_bytes(formats, call, target),
            overlap=True,
        ),
        [
            *_addresses(rows),
            *integers(rows[0].row_bytes, rows[0].record_bytes, rows[0].half_bytes),
            *integers(schedule.x_bytes(call, target)),
            pointer(routing.experts),
            *_banks(gate_up),
            *stored,
            *integers(call.tokens, call.per_token, call.experts),
            *integers(*(each.records(D) for each in formats)),
            *integers(call.inner, call.shared),
            *integers(*(int(_is_bf16(weight)) for weight in down)),
            *integers(call.most_groups, shared_blocks),
        ],
    )


def _multiply_down(
    device: CudaDevice,
    call: Call,
    routing: Routing,
    down: tuple[PackedWeight, PackedWeight],
    stored: list[Argument],
    out: Tensor,
) -> None:
    formats = _formats(down)
    schedule = down_schedule(formats, call, device.target)
    D = out.shape[1]
    inner = [weight.shape[1] for weight in down]
    device.launch(
        down_kernel(formats, schedule, out.dtype),
        Geometry(D // ROWS, schedule.warps * 32, schedule.down_bytes(formats, call), overlap=True),
        [
            *map(pointer, routing.tensors),
            *_banks(down),
            *stored,
            pointer(out),
            *longs(element_strides(out)[0]),
            *integers(call.tokens, call.per_token, call.experts, D),
            *integers(*(each.records(size) for each, size in zip(formats, inner, strict=True))),
            *integers(*inner),
            *integers(call.most_groups),
        ],
    )


def _is_bf16(weight: PackedWeight) -> bool:
    return weight.format == "bf16"


def _formats(weights: tuple[PackedWeight, PackedWeight]) -> Formats:
    return weights[0].record_format, weights[1].record_format


def _addresses(rows: list[_Rows]) -> list[Argument]:
    return [(address, POINTER) for each in rows for address in (each.data, each.factors)]


def _banks(weights: tuple[PackedWeight, PackedWeight]) -> list[Argument]:
    """Records and factors of rows of each."""
    arguments: list[Argument] = []
    for weight in weights:
        row_scale = 0 if weight.row_scale is None else weight.row_scale.data.ptr
        arguments += [(weight.data.data.ptr, POINTER), (row_scale, POINTER)]
    return arguments
