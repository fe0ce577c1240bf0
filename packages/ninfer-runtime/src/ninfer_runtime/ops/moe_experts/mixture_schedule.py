"""How the kernel of a whole mixture is built and spread over a device (mixture.cu)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.ops.linear.weight_records import COLUMNS as RECORD_COLUMNS
from ninfer_runtime.ops.linear.weight_records import ROWS
from ninfer_runtime.ops.moe_experts.few_schedule import FOLDER, PADDING, Call, Formats

MOST_TOKENS = 8
MOST_CHOICES = 32
"""Experts of a token."""

SCORE_ROWS = 8
"""Most rows of the router of a block."""

PRODUCT_WORDS = 1 << 15
"""Of exchanged products, of two values each."""

MOST_EXPERTS = 512

_CHUNK = 32
_BARRIER_BYTES = 1024


@dataclass(frozen=True, slots=True)
class MixtureFormats:
    """Formats of a layer's matrices, each of the experts and of the shared one.

    Attributes:
        gate_up: Gates and up matrices.
        down: Down matrices.
    """

    gate_up: Formats
    down: Formats


@dataclass(frozen=True, slots=True)
class MixtureSchedule:
    """How the kernel is built.

    Attributes:
        warps: Of a block.
        down_stage: Records of a down matrix in a stage of a warp's ring.
        stage: Records of each of two matrices in a stage.
        stages: Of those.
        room: Threads that the registers of an SM suffice for: more leave room for the kernels before and
            after.
        tokens: The most, 1 or 8.
    """

    warps: int
    down_stage: int
    stage: int
    stages: int
    room: int
    tokens: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * 32

    def gate_bytes(self, formats: MixtureFormats) -> int:
        """Shared memory of a warp's ring of gates and up matrices."""
        of_experts, of_shared = formats.gate_up
        return self.stages * max(2 * self.stage * of_experts.record_bytes, of_shared.record_bytes)

    def over(self, formats: MixtureFormats) -> int:
        """Stages of a down matrix that take the memory of the gates after those."""
        if self.tokens == 1:
            return 0
        stage = self.down_stage * formats.down[0].record_bytes
        return min(2, self.gate_bytes(formats) // stage)

    def shared_bytes(self, formats: MixtureFormats, call: Call) -> int:
        """Shared memory of a block, as expert_shape.cuh divides it."""
        of_experts, of_shared = formats.down
        T, call = self.tokens, replace(call, tokens=self.tokens)
        rings = self.gate_bytes(formats) + self.down_stage * of_experts.record_bytes
        shared_down = of_shared.records(call.shared) * of_shared.record_bytes
        x = -(-call.width // PADDING) * PADDING * 2 if T == 1 else 0
        first_use = x + self.warps * T * 256
        second_use = self.warps * min(T, 4) * (self.down_stage * RECORD_COLUMNS * 2 + 64)
        scores = 4 * T * (call.experts + 1)
        partial = 4 * (2 * call.slots * ROWS + self.warps * T * ROWS)
        return (
            _BARRIER_BYTES
            + self.warps * rings
            + shared_down
            + max(first_use, second_use)
            + max(scores, partial)
            + 4 * (2 * call.slots + T)
            + (call.group_bytes if T > 1 else 0)
        )

    def kernel(self, formats: MixtureFormats, call: Call, target: Target) -> Kernel:
        """The instance."""
        shape = (
            *(each.number for each in (*formats.gate_up, *formats.down)),
            *(call.width, call.experts, call.per_token, call.inner, call.shared),
            target.multiprocessors,
        )
        block = (
            *(self.warps, self.stage, self.stages, self.down_stage, self.over(formats)),
            self.tokens,
            self.shared_bytes(formats, call),
        )
        arguments = (
            f"ninfer::MixtureShape<{', '.join(map(str, shape))}>",
            f"ninfer::MixtureBlock<{', '.join(map(str, block))}>",
            str(self.room),
        )
        return Kernel(f"{FOLDER}/mixture.cu", f"ninfer::moe_mixture_kernel<{', '.join(arguments)}>")


def chunks(call: Call, warps: int) -> int:
    """Chunks of 32 values of a row that a warp scores."""
    return -(-call.width // (_CHUNK * warps))


def score_rows(call: Call, target: Target) -> int:
    """Rows of the router of a block."""
    return -(-(call.experts + 1) // target.multiprocessors)


def product_words(call: Call) -> int:
    """Words of exchanged products."""
    return (call.slots * call.inner + call.tokens * call.shared) // 2


def mixture_schedule(formats: MixtureFormats, call: Call, target: Target) -> MixtureSchedule | None:
    """How the kernel runs, None if it cannot.

    A row's sums have the same order for any number of tokens: warps and stages of down matrices are those
    of most tokens.
    """
    same_rows = len({each.name == "bf16" for each in formats.gate_up}) == 1
    if (
        not 0 < call.tokens <= MOST_TOKENS
        or call.per_token > MOST_CHOICES
        or call.experts > MOST_EXPERTS
        or score_rows(call, target) > SCORE_ROWS
        or call.shared // ROWS > target.multiprocessors
        or product_words(replace(call, tokens=MOST_TOKENS)) > PRODUCT_WORDS
        or not same_rows
    ):
        return None
    for warps, down_stage in ((16, 4), (16, 2), (16, 1), (8, 4), (8, 2), (8, 1)):
        # A block's rows of the router lie where down matrices will.
        router = score_rows(call, target) * chunks(call, warps) * _CHUNK * 2
        if router > down_stage * formats.down[0].record_bytes:
            continue
        many = MixtureSchedule(warps, down_stage, 1, 1, warps * 32, MOST_TOKENS)
        fitting = _first_that_fits(many, ((2, 3), (2, 2), (1, 2), (1, 1)), formats, call, target)
        if fitting is None:
            continue
        if call.tokens > 1:
            return fitting
        # With one token there is room for the kernels before and after.
        room = 768 if target.has_clusters and warps == 16 else warps * 32
        alone = replace(many, room=room, tokens=1)
        return _first_that_fits(alone, ((4, 1), (2, 1), (1, 1)), formats, call, target)
    return None


def _first_that_fits(
    schedule: MixtureSchedule,
    rings: Iterable[tuple[int, int]],
    formats: MixtureFormats,
    call: Call,
    target: Target,
) -> MixtureSchedule | None:
    """The first ring of gates that a block has room for."""
    for stage, stages in rings:
        found = replace(schedule, stage=stage, stages=stages)
        if found.shared_bytes(formats, call) <= target.shared_bytes:
            return found
    return None


def kernels(
    pairs: Iterable[tuple[Formats, Formats]], one: Call, target: Target
) -> Iterator[Kernel]:
    """What is needed for formats of gate_up and down, and calls like one but for the tokens."""
    for pair in pairs:
        formats = MixtureFormats(*pair)
        for tokens in (1, MOST_TOKENS):
            call = replace(one, tokens=tokens)
            schedule = mixture_schedule(formats, call, target)
            if schedule is not None:
                yield schedule.kernel(formats, call, target)
