"""Products of the same rows in one launch (stacked.cu): which go together, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import Geometry
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.ops.linear.schedule import (
    SKINNY_COLUMNS,
    X_IN_SHARED,
    Problem,
    Skinny,
    x_rows_of,
)

MOST_PARTS = 3
"""Products of one launch."""

_DENSE_FORMATS = frozenset({"q4_g64_fp16", "q5_g64_fp16", "fp8_e4m3fn_row_bf16", "bf16"})
_DENSE_RECORDS = 80
"""Of a row tile: 5 for each of 16 warps."""

_MOE_FORMATS = ("bf16", "q8_g32_fp16")
_MOE_RECORDS = 32
"""Of a row tile: 4 for each of 8 warps."""


@dataclass(frozen=True, slots=True)
class Stacked:
    """Two or three products in one launch, whose blocks are shared out among them.

    Attributes:
        parts: How each is multiplied. They have the same rows of x, warps and blocks of an SM.
    """

    parts: tuple[Skinny, ...]

    def kernel(self, problems: Sequence[Problem]) -> Kernel:
        """The instance that runs it."""
        names = [
            f"ninfer::StackedPart<{problem.record_format.number}, {part.stage}, {part.last},"
            f" {part.stages}, {part.x_place}, {part.ahead or part.stages}>"
            for part, problem in zip(self.parts, problems, strict=True)
        ]
        names += ["ninfer::NoPart"] * (MOST_PARTS - len(names))
        first = self.parts[0]
        return Kernel(
            "ops/linear/stacked.cu",
            f"ninfer::linear_stacked_kernel<{first.x_rows}, {first.warps}, {first.resident},"
            f" {', '.join(names)}>",
        )

    def shares(self, problems: Sequence[Problem], target: Target) -> list[int]:
        """Blocks of each product: the one that would end last gets the next block."""
        costs = [problem.records * problem.record_format.record_bytes for problem in problems]
        shares = [1] * len(problems)
        for _ in range(target.multiprocessors * self.parts[0].blocks - len(problems)):
            times = [
                cost * -(-problem.tiles // share)
                for cost, problem, share in zip(costs, problems, shares, strict=True)
            ]
            last = times.index(max(times))
            if shares[last] == problems[last].tiles:
                break
            shares[last] += 1
        return shares

    def fits(self, problems: Sequence[Problem], target: Target) -> bool:
        """Whether the kernel can run these problems on this device."""
        return target.has_clusters and all(
            part.fits(problem, target) for part, problem in zip(self.parts, problems, strict=True)
        )

    def geometry(self, problems: Sequence[Problem], target: Target) -> Geometry:
        """How the kernel is launched."""
        return Geometry(
            blocks=sum(self.shares(problems, target)),
            threads=self.parts[0].warps * 32,
            shared_bytes=max(
                part.shared_bytes(problem, target)
                for part, problem in zip(self.parts, problems, strict=True)
            ),
            overlap=True,
        )


def choose_stacked(problems: Sequence[Problem], target: Target) -> Stacked | None:
    """How to multiply in one launch, None if it takes one for each product.

    Args:
        problems: Products of the same rows, the smallest first.
        target: The kind of GPU.
    """
    first = problems[0]
    if first.columns > SKINNY_COLUMNS or not 2 <= len(problems) <= MOST_PARTS:
        return None
    formats = tuple(problem.record_format.name for problem in problems)
    x_rows = x_rows_of(first.columns, target)
    if first.records == _DENSE_RECORDS and _DENSE_FORMATS.issuperset(formats):
        stacked = Stacked(tuple(_dense(name, x_rows) for name in formats))
    elif first.records == _MOE_RECORDS and formats == _MOE_FORMATS:
        stacked = Stacked(tuple(_moe(name, x_rows, target) for name in formats))
    else:
        return None
    return stacked if stacked.fits(problems, target) else None


def _dense(name: str, x_rows: int) -> Skinny:
    """The fastest of what was measured on an H200, in the chain of a layer's launches."""
    if name == "bf16":  # of few rows: its ring must not be the largest
        stage, last = 2, 1
    elif x_rows == 1 or name == "q4_g64_fp16":
        stage, last = 5, 5
    else:
        stage, last = 3, 2
    return Skinny(x_rows, 16, stage, last, 2, x_place=5, ahead=0 if x_rows == 1 else 1)


def _moe(name: str, x_rows: int, target: Target) -> Skinny:
    if x_rows == 1:  # newer GPUs need some registers more
        x_place = 4 if target.has_wgmma else X_IN_SHARED
        # Two blocks leave room for one of Gated DeltaNet, which then reads its state meanwhile.
        stage = 1 if name == "bf16" else 2
        return Skinny(x_rows, 8, stage, stage, 4, blocks=2, x_place=x_place, resident=3)
    stage = 1 if name == "bf16" else 4
    return Skinny(x_rows, 8, stage, stage, 2, blocks=2, x_place=4, resident=2)
