"""The kernel for few new tokens: how its blocks share out rows and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import STORAGE
from ninfer_runtime.kv.formats import KVFormat
from ninfer_runtime.kv.row_codecs import HEAD_DIM, RowCodec
from ninfer_runtime.ops.paged_attention.plan import MAX_SEGMENTS, MOST_SEQUENCES, Plan

SOURCE = "ops/paged_attention/paged_attention.cu"
TILE_KEYS = 16
OCTET_ROWS = 8

SUM_STRIDE_BYTES = (HEAD_DIM + 8) * 4


@dataclass(frozen=True, slots=True)
class Variant:
    """How a block shares out rows and keys.

    Attributes:
        octets: Eights of rows of a warp.
        row_warps: Warps of a group, each with other rows.
        key_groups: Groups, which take tiles of keys in turn.
        stages: Tiles of a group's ring.
    """

    octets: int
    row_warps: int
    key_groups: int
    stages: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return OCTET_ROWS * self.octets * self.row_warps

    @property
    def static_shared_bytes(self) -> int:
        """Shared memory that the kernel declares itself: factors, weights and numbers."""
        return self.rows * (4 + self.key_groups * 8) + MOST_SEQUENCES * 4 + 16

    def shared_bytes(self, kv_format: KVFormat) -> int:
        """Dynamic shared memory of a block: queries and rings, later the groups' sums."""
        tile = _tile_bytes(kv_format.key.codec) + _tile_bytes(kv_format.value.codec)
        rings = self.rows * HEAD_DIM * 2 + self.key_groups * self.stages * tile
        sums = self.key_groups * self.rows * SUM_STRIDE_BYTES if self.key_groups > 1 else 0
        return max(rings, sums)


SHAPES = ((1, 1, (4, 2)), (1, 2, (2, 1)), (2, 2, (2, 1)), (2, 4, (2, 1)))
"""Octets, row warps and key groups: the fewest rows that suffice are taken, then the most groups."""

STAGES = (4, 3, 2)

BLOCK_SHARES = (3, 2, 1)
"""Blocks of a multiprocessor: as many as fit with three stages, or with two if that gives more."""

BF16_BLOCK_SHARES = ((2,), (1,))
"""The same for bf16 pages, whose tiles are large: rather two blocks of fewer groups than one."""

SEGMENT_BLOCKS = {8: 384, 16: 256, 32: 256, 64: 128}
"""Blocks that one sequence is cut into at most, by the rows of a block: enough to fill a large
device, few enough for the partial sums to stay small. It does not depend on other sequences, so
neither do the results."""

BF16_SEGMENT_BLOCKS = 264
"""The same for bf16 pages: two blocks fill a multiprocessor's shared memory."""


def most_rows(target: Target) -> int:
    """Rows that are few: with more, Hopper's warpgroups are faster."""
    return min(SEGMENT_BLOCKS) if target.has_wgmma else max(SEGMENT_BLOCKS)


def choose_variant(kv_format: KVFormat, rows: int, target: Target) -> Variant | None:
    """The variant for a number of rows (columns times heads of a key head).

    Args:
        kv_format: Format of the pages.
        rows: Rows of a sequence and key head, at most `most_rows`.
        target: Kind of GPU.

    Returns:
        None if none fits the shared memory.
    """
    for octets, row_warps, groups in SHAPES:
        if OCTET_ROWS * octets * row_warps < rows:
            continue
        for shares in _block_shares(kv_format, octets):
            for key_groups, blocks, stages in product(groups, shares, STAGES):
                variant = Variant(octets, row_warps, key_groups, stages)
                num_bytes = variant.shared_bytes(kv_format) + variant.static_shared_bytes
                if num_bytes <= target.shared_for(blocks):
                    return variant
    return None


def _block_shares(kv_format: KVFormat, octets: int) -> tuple[tuple[int, ...], ...]:
    """Blocks of a multiprocessor that are tried; those of an earlier group before all of a later."""
    if octets > 1:
        return (BLOCK_SHARES[1:],)
    return BF16_BLOCK_SHARES if kv_format.name == "bf16" else (BLOCK_SHARES,)


def segments_of(kv_format: KVFormat, variant: Variant, num_key_value_heads: int) -> int:
    """Segments that the keys of a sequence are cut into at most."""
    blocks = SEGMENT_BLOCKS[variant.rows]
    if kv_format.name == "bf16":
        blocks = min(blocks, BF16_SEGMENT_BLOCKS)
    return max(1, min(MAX_SEGMENTS, blocks // num_key_value_heads))


def resident_blocks(kv_format: KVFormat, variant: Variant, target: Target) -> int:
    """Blocks that a multiprocessor holds at once: as their registers and shared memory allow."""
    warps = variant.row_warps * variant.key_groups
    two_codecs = kv_format.key.codec is not kv_format.value.codec
    blocks = 1 if variant.octets > 1 else max(1, (8 if two_codecs else 12) // warps)
    num_bytes = variant.shared_bytes(kv_format) + variant.static_shared_bytes
    while num_bytes > target.shared_for(blocks):
        blocks -= 1
    return blocks


def decode_kernel(kv_format: KVFormat, variant: Variant) -> Kernel:
    """The instance for a format and variant."""
    numbers = (
        kv_format.key.codec.number,
        kv_format.value.codec.number,
        variant.octets,
        variant.row_warps,
        variant.key_groups,
        variant.stages,
    )
    return Kernel(SOURCE, f"ninfer::paged_attention_kernel<{', '.join(map(str, numbers))}>")


def decode_plan(
    kv_format: KVFormat, rows: int, num_key_value_heads: int, target: Target
) -> Plan | None:
    """The launch for at most `most_rows` rows; None if no variant fits the shared memory."""
    variant = choose_variant(kv_format, rows, target)
    if variant is None:
        return None
    return Plan(
        kernel=decode_kernel(kv_format, variant),
        rows=variant.rows,
        threads=32 * variant.row_warps * variant.key_groups,
        shared_bytes=variant.shared_bytes(kv_format),
        segments=segments_of(kv_format, variant, num_key_value_heads),
        takes_result=False,
        final=False,
        most_blocks=resident_blocks(kv_format, variant, target) * target.multiprocessors,
    )


def decode_kernels(kv_format: KVFormat, target: Target) -> Iterator[Kernel]:
    """What models need on a kind of GPU."""
    for rows in SEGMENT_BLOCKS:
        if rows > most_rows(target):
            break
        variant = choose_variant(kv_format, rows, target)
        if variant is not None:
            yield decode_kernel(kv_format, variant)


def _tile_bytes(codec: RowCodec) -> int:
    """Bytes of the rows of a tile in shared memory."""
    scales = 0
    if codec.scale_dtype is not None:
        scales = codec.scale_width * STORAGE[codec.scale_dtype].itemsize
    codes = codec.code_width * STORAGE[codec.code_dtype].itemsize
    return TILE_KEYS * codes + -(-TILE_KEYS * scales // 16) * 16
