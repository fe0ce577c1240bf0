"""Which kernel multiplies a packed weight, and how it is spread over the device.

Pure functions of format, shape, number of columns and device. No single schedule is best everywhere:
`tuning` holds the measured choices, this module what a schedule is and whether it fits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.ops.linear.weight_records import ROWS, RecordFormat

SKINNY_COLUMNS = 8
"""Most columns of the skinny kernel: one block of the tensor cores' products."""

MEDIUM_COLUMNS = 16
"""Columns of the medium kernel: two blocks."""

WIDE_COLUMNS = (16, 32, 64, 128)
"""Columns of x in memory that the wide kernel is built for."""

X_IN_SHARED, X_IN_GLOBAL = 0, -1

_BARRIER_BYTES = 1024

_PAIR_BYTES = 160
"""Of the sums of two columns of a row tile in medium.cu."""

EXCHANGED_WORDS = 320 * ROWS * SKINNY_COLUMNS
"""Most sums that the blocks of a kernel exchange."""


class Result(Enum):
    """What becomes of a product, as product_result.cuh numbers it."""

    STORED = 0
    ADDED = 1
    GATED = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One product.

    Attributes:
        record_format: How the weight lies in records.
        tiles: Its row tiles.
        records: Records of a row tile.
        columns: Rows T of x.
    """

    record_format: RecordFormat
    tiles: int
    records: int
    columns: int


@dataclass(frozen=True, slots=True)
class Skinny:
    """Up to 8 columns: the warps of a block split K (skinny_product.cuh).

    Attributes:
        x_rows: Rows of x in memory: 1, 4 or 8.
        warps: Warps of a block.
        stage: Records of a stage of a warp's ring.
        last: Records of the last stage of a row tile; 0 if warps have different numbers.
        stages: Stages of a ring.
        splits: Blocks that split K of every row tile, 1 or 2.
        blocks: Blocks for each SM.
        x_place: `X_IN_SHARED`, `X_IN_GLOBAL`, or the number of a warp's records if x is in registers.
        resident: Blocks that registers are kept small enough for on an SM.
        ahead: Stages that are filled before x is there, 0 for all: what is on its way delays x, and the
            end of the kernel before.
        held: Whether registers hold a stage's words before they are multiplied, so that it is filled again
            sooner; 0 or 1.
    """

    x_rows: int
    warps: int
    stage: int
    last: int
    stages: int
    splits: int = 1
    blocks: int = 1
    x_place: int = X_IN_SHARED
    resident: int = 1
    ahead: int = 0
    held: int = 0

    def kernel(self, record_format: RecordFormat, result: Result = Result.STORED) -> Kernel:
        """The instance that runs it."""
        arguments = (
            record_format.number,
            self.x_rows,
            self.warps,
            self.stage,
            self.last,
            self.stages,
            self.splits,
            self.resident,
            self.x_place,
            result.value,
            self.ahead or self.stages,
            self.held,
        )
        return Kernel(
            "ops/linear/skinny.cu",
            f"ninfer::linear_skinny_kernel<{', '.join(map(str, arguments))}>",
        )

    def for_sums(self) -> Skinny:
        """The schedule for products that are added to a residual: they take some registers more."""
        resident = max(1, self.resident - 1)
        return replace(self, blocks=min(self.blocks, resident), resident=resident)

    def shared_bytes(self, problem: Problem, target: Target) -> int:
        """Dynamic shared memory of a block."""
        ring = self.warps * self.stages * self.stage * problem.record_format.record_bytes
        records = -(-problem.records // self.splits)
        x = records * 128 * self.x_rows if self.x_place == X_IN_SHARED else 0
        tile_sums = ROWS * self.x_rows * 4
        sums = 2 * self.warps * tile_sums
        own = -(-problem.tiles // self._teams(problem, target)) * tile_sums
        return _BARRIER_BYTES + ring + x + sums + (own if self.splits > 1 else 0)

    def fits(self, problem: Problem, target: Target) -> bool:
        """Whether the kernel can run this problem on this device."""
        count, rest = divmod(problem.records, self.splits * self.warps)
        if self.last:
            if rest:
                return False
            if self.x_place > 0 and self.x_place != count:
                return False
            if count % self.stage != self.last % self.stage or count < self.last:
                return False
        elif self.x_place > 0:
            if not rest or self.x_place != count + 1:
                return False
        elif self.splits > 1 or self.held:
            return False
        if self.splits > 1 and problem.tiles * ROWS * self.x_rows > EXCHANGED_WORDS:
            return False
        if self.ahead > self.stages:
            return False
        blocks = max(self.blocks, self.resident)
        return self.shared_bytes(problem, target) <= target.shared_for(blocks)

    def geometry(self, problem: Problem, target: Target) -> Geometry:
        """How the kernel is launched."""
        return Geometry(
            blocks=self._teams(problem, target) * self.splits,
            threads=self.warps * 32,
            shared_bytes=self.shared_bytes(problem, target),
            overlap=target.has_clusters,
        )

    def _teams(self, problem: Problem, target: Target) -> int:
        return min(problem.tiles, target.multiprocessors * self.blocks // self.splits)


@dataclass(frozen=True, slots=True)
class Medium:
    """9 to 16 columns on Hopper: the warps of a block split K and hold x in registers (medium.cu).

    Attributes:
        warps: Warps of a block.
        stage: Records of a warp and row tile; they are a stage of its ring.
        stages: Stages of a ring, a power of two.
    """

    warps: int
    stage: int
    stages: int

    x_rows = MEDIUM_COLUMNS

    def kernel(self, record_format: RecordFormat, result: Result = Result.STORED) -> Kernel:
        """The instance that runs it."""
        return Kernel(
            "ops/linear/medium.cu",
            f"ninfer::linear_medium_kernel<{record_format.number}, {self.warps}, {self.stage},"
            f" {self.stages}, {result.value}>",
        )

    def shared_bytes(self, problem: Problem, target: Target) -> int:
        """Dynamic shared memory of a block."""
        ring = self.warps * self.stages * self.stage * problem.record_format.record_bytes
        sums = 2 * self.warps * (MEDIUM_COLUMNS // 2) * _PAIR_BYTES
        return _BARRIER_BYTES + ring + sums

    def fits(self, problem: Problem, target: Target) -> bool:
        """Whether the kernel can run this problem on this device."""
        return (
            target.has_wgmma
            and problem.columns <= MEDIUM_COLUMNS
            and self.stage <= problem.records <= self.warps * self.stage
            and self.shared_bytes(problem, target) <= target.shared_bytes
        )

    def geometry(self, problem: Problem, target: Target) -> Geometry:
        """How the kernel is launched."""
        return Geometry(
            blocks=min(problem.tiles, target.multiprocessors),
            threads=self.warps * 32,
            shared_bytes=self.shared_bytes(problem, target),
            overlap=True,
        )


@dataclass(frozen=True, slots=True)
class Wide:
    """9 to 128 columns on Hopper: warpgroups own rows or share them along K (wide.cu).

    Attributes:
        x_rows: Rows of x in memory: 16, 32, 64 or 128.
        groups: Warpgroups that multiply.
        row_groups: Warpgroups with different rows; it divides `groups`.
        stage: Records of a warpgroup and row tile in a stage.
    """

    x_rows: int
    groups: int
    row_groups: int
    stage: int

    def kernel(self, record_format: RecordFormat, result: Result = Result.STORED) -> Kernel:
        """The instance that runs it."""
        return Kernel(
            "ops/linear/wide.cu",
            f"ninfer::linear_wide_kernel<{record_format.number}, {self.x_rows}, {self.groups},"
            f" {self.stage}, {result.value}>",
        )

    def stages(self, problem: Problem, target: Target) -> int:
        """Stages of the ring: as many as fit, and as are of use."""
        free = target.shared_bytes - self._fixed_bytes()
        return min(8, free // self._stage_bytes(problem, target))

    def shared_bytes(self, problem: Problem, target: Target) -> int:
        """Dynamic shared memory of a block."""
        stages = self.stages(problem, target)
        return self._fixed_bytes() + stages * self._stage_bytes(problem, target)

    def fits(self, problem: Problem, target: Target) -> bool:
        """Whether the kernel can run this problem on this device."""
        return target.has_wgmma and self.stages(problem, target) >= 2

    def geometry(self, problem: Problem, target: Target) -> Geometry:
        """How the kernel is launched."""
        return Geometry(
            blocks=self._blocks(problem, target),
            threads=(self.groups + 1) * 128,
            shared_bytes=self.shared_bytes(problem, target),
            overlap=True,
        )

    def _blocks(self, problem: Problem, target: Target) -> int:
        return min(problem.tiles, target.multiprocessors)

    def _stage_bytes(self, problem: Problem, target: Target) -> int:
        records = self.groups // self.row_groups * self.stage
        most_tiles = -(-problem.tiles // self._blocks(problem, target))
        tiles = min(self.row_groups * 4, most_tiles)
        return records * (self.x_rows * 128 + tiles * problem.record_format.record_bytes)

    def _fixed_bytes(self) -> int:
        alignment = 1024
        sums = (self.groups - self.row_groups) * self.x_rows * 256
        return _BARRIER_BYTES + alignment + sums


Schedule: TypeAlias = Skinny | Medium | Wide


def x_rows_of(columns: int, target: Target) -> int:
    """Rows of x in memory for so many columns: those of the smallest kernel that takes them."""
    few = (1, 4) if target.has_wgmma else (1,)
    every: tuple[int, ...] = (*few, SKINNY_COLUMNS, *WIDE_COLUMNS)
    return next(rows for rows in every if columns <= rows)


def problem_of(record_format: RecordFormat, shape: tuple[int, int], columns: int) -> Problem:
    """The product of a weight [N, K] and so many columns."""
    N, K = shape
    return Problem(record_format, -(-N // ROWS), record_format.records(K), columns)
