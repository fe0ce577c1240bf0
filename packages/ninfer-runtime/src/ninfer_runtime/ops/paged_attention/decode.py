"""The kernel for few new tokens: how its blocks share out rows and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.kv.formats import KVFormat
from ninfer_runtime.kv.row_codecs import HEAD_DIM
from ninfer_runtime.ops.paged_attention.plan import MAX_SEGMENTS, MOST_SEQUENCES, Plan

SOURCE = "ops/paged_attention/paged_attention.cu"
OCTET_ROWS = 8
PRODUCT_KEYS = 16
"""Keys of one product, which a warp has of each tile."""

WARP_THREADS = 32
ITEM_BYTES, CURSOR_BYTES = 52, 68


@dataclass(frozen=True, slots=True)
class Variant:
    """How a block goes through keys.

    Attributes:
        octets: Eights of rows of a block.
        warps: Warps of a block, each with 16 keys of a tile.
        stages: Tiles of a block's ring.
        blocks: Blocks that a multiprocessor holds at once.
    """

    octets: int
    warps: int
    stages: int
    blocks: int

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return OCTET_ROWS * self.octets

    @property
    def static_shared_bytes(self) -> int:
        """Shared memory that the kernel declares itself."""
        factors, numbers = self.rows * 4, 2 * MOST_SEQUENCES * 4
        weights = self.warps * (2 * self.rows * 4 + self.octets * WARP_THREADS * 8)
        return factors + numbers + weights + self.warps * (ITEM_BYTES + CURSOR_BYTES) + 64

    def shared_bytes(self, kv_format: KVFormat) -> int:
        """Dynamic shared memory of a block: queries and the ring."""
        keys = PRODUCT_KEYS * self.warps
        codecs = (kv_format.key.codec, kv_format.value.codec)
        tile = keys * sum(codec.row_bytes(HEAD_DIM) for codec in codecs)
        return self.rows * HEAD_DIM * 2 + self.stages * tile

    def fits(self, kv_format: KVFormat, target: Target) -> bool:
        """Whether a multiprocessor has shared memory for the blocks."""
        num_bytes = self.shared_bytes(kv_format) + self.static_shared_bytes
        return num_bytes <= target.shared_for(self.blocks)


BLOCKS = 3
"""Blocks of a multiprocessor, as many as its registers and shared memory allow."""

BF16_BLOCKS = 2
"""The same for bf16 pages, whose tiles are large: rather two blocks with more stages."""

MOST_OCTETS = 2

STAGES = (4, 3, 2)

SEGMENT_BLOCKS = {8: 384, 16: 256}
"""Blocks that one sequence is cut for at most, by the rows of a block: enough to fill a large
device, few enough for the partial sums to stay small. It does not depend on other sequences, so
neither do the results."""

BF16_SEGMENT_BLOCKS = 264
"""The same for bf16 pages, of which a multiprocessor holds fewer tiles."""


def most_rows(target: Target) -> int:
    """Rows that are few: with more, Hopper's warpgroups are faster."""
    return min(SEGMENT_BLOCKS) if target.has_wgmma else max(SEGMENT_BLOCKS)


def choose_variant(kv_format: KVFormat, rows: int, target: Target) -> Variant | None:
    """The variant for a number of rows: the most blocks that fit, then the most stages.

    Args:
        kv_format: Format of the pages.
        rows: Rows of a sequence and key head (columns times its heads), at most `most_rows`.
        target: Kind of GPU.

    Returns:
        None if none fits the shared memory.
    """
    octets = next(n for n in range(1, MOST_OCTETS + 1) if OCTET_ROWS * n >= rows)
    is_bf16 = kv_format.name == "bf16"
    warps, most = (2, BF16_BLOCKS) if is_bf16 else (4, BLOCKS)
    for blocks, stages in product(range(most, 0, -1), STAGES):
        variant = Variant(octets, warps, stages, blocks)
        if variant.fits(kv_format, target):
            return variant
    return None


def segments_of(kv_format: KVFormat, variant: Variant, num_key_value_heads: int) -> int:
    """Segments that the keys of a sequence are cut into at most."""
    blocks = SEGMENT_BLOCKS[variant.rows]
    if kv_format.name == "bf16":
        blocks = min(blocks, BF16_SEGMENT_BLOCKS)
    return max(1, min(MAX_SEGMENTS, blocks // num_key_value_heads))


def decode_kernel(kv_format: KVFormat, variant: Variant) -> Kernel:
    """The instance for a format and variant."""
    numbers = (
        kv_format.key.codec.number,
        kv_format.value.codec.number,
        variant.octets,
        variant.warps,
        variant.stages,
        variant.blocks,
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
        threads=WARP_THREADS * variant.warps,
        shared_bytes=variant.shared_bytes(kv_format),
        segments=segments_of(kv_format, variant, num_key_value_heads),
        takes_heads=True,
        final=False,
        most_blocks=variant.blocks * target.multiprocessors,
    )


def decode_kernels(kv_format: KVFormat, target: Target) -> Iterator[Kernel]:
    """What models need on a kind of GPU."""
    for rows in SEGMENT_BLOCKS:
        if rows > most_rows(target):
            break
        variant = choose_variant(kv_format, rows, target)
        if variant is not None:
            yield decode_kernel(kv_format, variant)
