"""What a launch of `paged_attention` needs to know, whichever kernel it is."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.kv.row_codecs import HEAD_DIM

MAX_SEGMENTS = 256
"""Segments that the merging kernel has room for."""

MOST_SEQUENCES = 192
"""Sequences of a launch at most; attention_work.cuh has room for so many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One launch.

    Attributes:
        kernel: The instance.
        rows: Rows of a block: new tokens times query heads of a key head.
        threads: Threads of a block.
        shared_bytes: Dynamic shared memory of a block.
        segments: Parts that the keys of a sequence are cut into at most.
        takes_heads: Whether the kernel can make heads of a projection ready and append new rows.
            If not, it can write the result.
        final: Whether it does that; otherwise segments are merged by another.
        most_blocks: Blocks that suffice, however much there is to do. None: one for everything.
    """

    kernel: Kernel
    rows: int
    threads: int
    shared_bytes: int
    segments: int
    takes_heads: bool
    final: bool
    most_blocks: int | None


def partial_bytes(count: int) -> tuple[int, int]:
    """Bytes of the weights and of the sums that so many segments of rows leave to be merged."""
    return count * 2 * 4, count * HEAD_DIM * 4
