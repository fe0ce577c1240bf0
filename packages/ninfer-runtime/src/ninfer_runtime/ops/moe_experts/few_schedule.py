"""How the kernels for few tokens are built and spread over a device (gate_up.cu, down.cu)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.rows import ELEMENT_TYPES
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.schedule import x_rows_of
from ninfer_runtime.ops.linear.weight_records import ROWS, RecordFormat

FOLDER = "ops/moe_experts"
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
        room: Threads that the registers and the shared memory of an SM suffice for, 0 for those of
            one block: more leave room for the kernels before and after.
        team: Warps that split K of a gate.
        copied: Whether blocks copy the activations that they multiply to shared memory.
    """

    warps: int
    stage: int
    stages: int
    room: int = 0
    team: int = 1
    copied: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * 32

    def ring_bytes(self, formats: Formats) -> int:
        """Shared memory of the rings of a block that streams one matrix."""
        stage = max(self.stage * formats[0].record_bytes, formats[1].record_bytes)
        return self.warps * self.stages * stage

    def gate_up_bytes(self, formats: Formats, call: Call, target: Target) -> int:
        """Shared memory of a block of the first kernel."""
        columns = min(call.tokens, COLUMNS)
        sums = 2 * self.warps * 2 * columns * ROWS * 4 if self.team > 1 else 0
        rings = 2 * self.ring_bytes(formats)
        return _BARRIER_BYTES + rings + self.x_bytes(call, target) + sums + call.group_bytes

    def x_bytes(self, call: Call, target: Target) -> int:
        """Shared memory for x in the first kernel."""
        return call.x_bytes(target) if self.copied else 0

    def down_bytes(self, formats: Formats, call: Call) -> int:
        """Shared memory of a block of the second kernel."""
        partial = (call.slots + call.tokens) * (ROWS + 1) * 4
        rings = _BARRIER_BYTES + self.ring_bytes(formats)
        # Copied products are of one group of tokens, and the shared expert's weights have a ring of
        # their own.
        copied = call.product_bytes + 8 * formats[1].record_bytes if self.copied else 0
        return rings + copied + partial + call.group_bytes


ONE_TOKEN_GATE_UP = tuple(Schedule(12, *ring, room=608) for ring in ((4, 2), (2, 2), (1, 2)))
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
ONE_TOKEN_DOWN = (Schedule(9, 4, 2, room=640), *DOWN)
"""Schedules in the order of preference; the first that fits is taken. With one token an SM has room for a
block of each kernel, and for one of the output projection before them."""


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
    alone = most.tokens == 1 and target.has_clusters
    choices = (*ONE_TOKEN_GATE_UP, *GATE_UP) if alone else GATE_UP
    wanted = [replace(each, team=team_of(most, target), copied=copied) for each in choices]
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
        share = schedule.threads / (schedule.room or schedule.threads)
        if shared_bytes(schedule) <= target.shared_bytes * share:
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
        schedule.room or schedule.threads,
        str(schedule.copied).lower(),
    )
    return Kernel(
        f"{FOLDER}/gate_up.cu", f"ninfer::moe_gate_up_kernel<{', '.join(map(str, arguments))}>"
    )


def down_kernel(formats: Formats, schedule: Schedule, dtype: DType) -> Kernel:
    """The second kernel."""
    arguments = (
        *(each.number for each in formats),
        schedule.warps,
        schedule.stage,
        schedule.stages,
        schedule.room or schedule.threads,
        str(schedule.copied).lower(),
        ELEMENT_TYPES[dtype],
    )
    return Kernel(f"{FOLDER}/down.cu", f"ninfer::moe_down_kernel<{', '.join(map(str, arguments))}>")


def rows_kernel(*, bf16: bool) -> Kernel:
    """The kernel that puts rows into the order of B fragments."""
    return Kernel(f"{FOLDER}/rows.cu", f"ninfer::moe_rows_kernel<{str(bf16).lower()}>")


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
