"""How the kernels for few tokens are built and spread over a device (gate_up.cu, down.cu)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.rows import ELEMENT_TYPES
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import DType
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.ops.linear.weight_records import ROWS, RecordFormat

FOLDER = "ops/moe_experts"
COLUMNS = 8
MAX_SLOTS, MOST_TOKENS = 512, 64
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
    def of_most(self) -> Call:
        """The largest call that has the same schedules: there are few kernels."""
        return replace(self, tokens=min(MOST_TOKENS, MAX_SLOTS // self.per_token))

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


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a kernel is built.

    Attributes:
        warps: Of a block.
        stage: Records of a matrix in a stage of a warp's ring.
        stages: Of a ring.
    """

    warps: int
    stage: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * 32

    def ring_bytes(self, formats: Formats) -> int:
        """Shared memory of the rings of a block that streams one matrix."""
        stage = max(self.stage * formats[0].record_bytes, formats[1].record_bytes)
        return self.warps * self.stages * stage

    def gate_up_bytes(self, formats: Formats, call: Call) -> int:
        """Shared memory of a block of the first kernel."""
        return _BARRIER_BYTES + 2 * self.ring_bytes(formats) + call.group_bytes

    def down_bytes(self, formats: Formats, call: Call) -> int:
        """Shared memory of a block of the second kernel."""
        partial = (call.slots + call.tokens) * (ROWS + 1) * 4
        return _BARRIER_BYTES + self.ring_bytes(formats) + partial + call.group_bytes


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
"""Schedules in the order of preference; the first that fits is taken."""


def gate_up_schedule(formats: Formats, call: Call, target: Target) -> Schedule:
    """The schedule of the first kernel.

    Raises:
        UnsupportedOpError: None fits the device.
    """
    most = call.of_most
    return _first_that_fits(most, target, GATE_UP, lambda s: s.gate_up_bytes(formats, most))


def down_schedule(formats: Formats, call: Call, target: Target) -> Schedule:
    """The schedule of the second kernel.

    Raises:
        UnsupportedOpError: None fits the device.
    """
    most = call.of_most
    return _first_that_fits(most, target, DOWN, lambda s: s.down_bytes(formats, most))


def _first_that_fits(
    call: Call,
    target: Target,
    wanted: Sequence[Schedule],
    shared_bytes: Callable[[Schedule], int],
) -> Schedule:
    """The first schedule whose blocks have room."""
    for schedule in wanted:
        if shared_bytes(schedule) <= target.shared_bytes:
            return schedule
    raise UnsupportedOpError("moe_experts", "cuda", detail=f"{call} on {target}")


def gate_up_kernel(formats: Formats, schedule: Schedule) -> Kernel:
    """The first kernel."""
    arguments = (
        *(each.number for each in formats),
        schedule.warps,
        schedule.stage,
        schedule.stages,
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
        yield gate_up_kernel(gate_up, gate_up_schedule(gate_up, one, target))
        yield down_kernel(down, down_schedule(down, one, target), DType.BF16)
    for bf16 in (False, True):
        yield rows_kernel(bf16=bf16)
