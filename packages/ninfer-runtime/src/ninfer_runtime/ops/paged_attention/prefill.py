"""The kernels for many new tokens: a portable one, and one for Hopper's warpgroups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.kv.formats import KVFormat
from ninfer_runtime.kv.pages import PAGE_TOKENS
from ninfer_runtime.kv.row_codecs import HEAD_DIM
from ninfer_runtime.ops.paged_attention.plan import (
    MAX_SEGMENTS,
    MOST_SEQUENCES,
    Plan,
    partial_bytes,
)

WGMMA_SOURCE = "ops/paged_attention/prefill_wgmma.cu"

ROW_BYTES = HEAD_DIM * 2
"""Of a query, key or value in shared memory."""

WARPGROUP_ROWS = 64
WARPGROUP_THREADS = 128
SLOTS = 2
"""Pages of keys, and of values, that are multiplied or ready (prefill_wgmma.cu)."""

BARRIER_BYTES = 128
NUMBERS_BYTES = MOST_SEQUENCES * 4

PARTIAL_BYTES = 12 * 2**20
"""What the segments of one sequence may leave to be merged: the workspace holds that of eight."""

WORTH_A_SEGMENT = 0.95
"""More segments are taken if the time comes down to this part."""


@dataclass(frozen=True, slots=True)
class Block:
    """A kind of block that goes through the keys of some rows.

    Attributes:
        instance: The kernel, but for its last argument.
        source: The kernel's source.
        rows: Rows of a block.
        threads: Threads of a block.
        shared_bytes: Dynamic shared memory.
    """

    instance: str
    source: str
    rows: int
    threads: int
    shared_bytes: int

    def kernel(self, *, final: bool) -> Kernel:
        """The instance that writes results, or sums to be merged."""
        return Kernel(self.source, f"ninfer::{self.instance}, {str(final).lower()}>")


def warpgroup_block(kv_format: KVFormat, rows: int) -> Block:
    """The block for Hopper: one or two warpgroups that multiply 64 rows each, two that fill."""
    multipliers = 1 if rows <= WARPGROUP_ROWS else 2
    coded = 0 if kv_format.name == "bf16" else _page_bytes(kv_format) * (3 - multipliers)
    rows = multipliers * WARPGROUP_ROWS
    return Block(
        f"paged_prefill_wgmma_kernel<{_codecs(kv_format)}, {multipliers}",
        WGMMA_SOURCE,
        rows,
        WARPGROUP_THREADS * (multipliers + 2),
        (rows + 2 * SLOTS * PAGE_TOKENS) * ROW_BYTES + BARRIER_BYTES + NUMBERS_BYTES + coded,
    )


def portable_block(kv_format: KVFormat, target: Target) -> Block | None:
    """The block for any architecture; None if it does not fit the shared memory."""
    rows = 128
    # Codes wait in registers to be expanded, which suffice for half a page.
    for keys in (64, 32) if kv_format.name == "bf16" else (32,):
        shared_bytes = (rows + 2 * keys) * ROW_BYTES
        if shared_bytes <= target.shared_bytes:
            return Block(
                f"paged_prefill_kernel<{_codecs(kv_format)}, {keys}",
                "ops/paged_attention/prefill.cu",
                rows,
                2 * rows,
                shared_bytes,
            )
    return None


def choose_block(kv_format: KVFormat, rows: int, target: Target) -> Block | None:
    """The block for a number of rows (columns times heads of a key head).

    Returns:
        None if none fits the shared memory.
    """
    if target.has_wgmma:
        block = warpgroup_block(kv_format, rows)
        if block.shared_bytes <= target.shared_bytes:
            return block
    return portable_block(kv_format, target)


def segments_of(rows: int, block_rows: int, num_key_value_heads: int, multiprocessors: int) -> int:
    """Segments that fill the device, if the blocks of one sequence do not.

    It does not depend on other sequences, so neither do the results.
    """
    blocks = -(-rows // block_rows) * num_key_value_heads
    most = PARTIAL_BYTES // sum(partial_bytes(rows * num_key_value_heads))

    def time(segments: int) -> float:
        return -(-blocks * segments // multiprocessors) / segments

    best = 1
    for segments in range(2, min(MAX_SEGMENTS, most) + 1):
        if time(segments) < WORTH_A_SEGMENT * time(best):
            best = segments
    return best


def prefill_plan(
    kv_format: KVFormat, rows: int, num_key_value_heads: int, target: Target
) -> Plan | None:
    """The launch for any number of rows; None if no block fits the shared memory."""
    block = choose_block(kv_format, rows, target)
    if block is None:
        return None
    return plan_of(block, rows, num_key_value_heads, target)


def plan_of(block: Block, rows: int, num_key_value_heads: int, target: Target) -> Plan:
    """The launch of a kind of block."""
    segments = segments_of(rows, block.rows, num_key_value_heads, target.multiprocessors)
    is_alone = segments == 1
    shares_work = block.source == WGMMA_SOURCE and not is_alone
    return Plan(
        kernel=block.kernel(final=is_alone),
        rows=block.rows,
        threads=block.threads,
        shared_bytes=block.shared_bytes,
        segments=segments,
        takes_heads=False,
        final=is_alone,
        most_blocks=target.multiprocessors if shares_work else None,
    )


def prefill_kernels(kv_format: KVFormat, target: Target) -> Iterator[Kernel]:
    """What models need on a kind of GPU."""
    for rows in (WARPGROUP_ROWS, 2 * WARPGROUP_ROWS):
        block = choose_block(kv_format, rows, target)
        if block is not None:
            yield from (block.kernel(final=final) for final in (False, True))


def _codecs(kv_format: KVFormat) -> str:
    return f"{kv_format.key.codec.number}, {kv_format.value.codec.number}"


def _page_bytes(kv_format: KVFormat) -> int:
    """Bytes of a page of one key head, as it is stored."""
    codecs = (kv_format.key.codec, kv_format.value.codec)
    return PAGE_TOKENS * sum(codec.row_bytes(HEAD_DIM) for codec in codecs)
