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


def row_schedule(columns: int, pack: int, widths: tuple[int, ...]) -> RowSchedule | None:
    """The fewest threads that hold a row, None if it is too long.

    Args:
        columns: Elements of a row, a multiple of `pack`.
        pack: Elements of one access.
        widths: Threads of a row that the kernel offers, ascending.
    """
    number = columns // pack
    for threads in widths:
        packs = -(-number // threads)
        if packs * pack <= MAX_VALUES:
            return RowSchedule(pack, max(packs, 1), threads)
    return None


MODEL_ROWS = (2048, 5120)
"""Hidden sizes of the models."""


def model_schedules(widths: tuple[int, ...]) -> list[RowSchedule]:
    """Schedules of the models' hidden states in bf16."""
    found = (row_schedule(columns, PACK, widths) for columns in MODEL_ROWS)
    return [each for each in found if each is not None]
