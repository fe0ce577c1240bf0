"""How many threads hold a row in registers."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.cuda.rows import PACK

MAX_VALUES = 32
"""Elements of a thread: few enough to stay in registers."""

WARP = 32
BLOCK_THREADS = 256
"""Threads of a block of several rows, one warp each."""


@dataclass(frozen=True, slots=True)
class RowSchedule:
    """Threads of a row and what each of them holds.

    Attributes:
        pack: Elements of a pack.
        packs: Packs of a thread.
        threads: Threads of a row.
    """

    pack: int
    packs: int
    threads: int

    @property
    def rows_per_block(self) -> int:
        """A short row takes a warp, and a block has several; a longer one takes a block."""
        return BLOCK_THREADS // WARP if self.threads == WARP else 1

    @property
    def block_threads(self) -> int:
        """Threads of a block."""
        return self.threads * self.rows_per_block


def row_schedule(
    columns: int, pack: int, widths: tuple[int, ...], *, values: int = MAX_VALUES
) -> RowSchedule | None:
    """The fewest threads that hold a row, None if it is too long.

    Args:
        columns: Elements of a row, a multiple of `pack`.
        pack: Elements of one access.
        widths: Threads of a row that the kernel offers, ascending.
        values: Most elements of a thread.
    """
    number = columns // pack
    for threads in widths:
        packs = -(-number // threads)
        if packs * pack <= values:
            return RowSchedule(pack, max(packs, 1), threads)
    return None


MODEL_ROWS = (2048, 5120)
"""Hidden sizes of the models."""


FEW_ROWS = 32
"""Up to so many rows do not fill a GPU: a row takes as many threads as there are."""


def rows_schedule(
    rows: int, columns: int, pack: int, widths: tuple[int, ...]
) -> RowSchedule | None:
    """As `row_schedule`, with one pack a thread where the rows are few."""
    few = row_schedule(columns, pack, widths, values=PACK) if rows <= FEW_ROWS else None
    return few or row_schedule(columns, pack, widths)


def model_schedules(widths: tuple[int, ...]) -> list[RowSchedule]:
    """Schedules of the models' hidden states in bf16, for many rows and for few."""
    found = (
        rows_schedule(rows, columns, PACK, widths)
        for columns in MODEL_ROWS
        for rows in (1, FEW_ROWS + 1)
    )
    return [each for each in found if each is not None]
