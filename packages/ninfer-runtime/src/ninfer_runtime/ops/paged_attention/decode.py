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
MOST_ROWS = 8
"""Rows that are few: as many as a product of the tensor cores has. More are for the other kernel."""

PRODUCT_KEYS = 16
"""Keys of one product, which a warp has of each round."""

WARP_THREADS = 32
SPAN_BYTES, WORD_BYTES = 20, 4


@dataclass(frozen=True, slots=True)
class Variant:
    """How a block goes through keys.

    Attributes:
        warps: Warps of a block, each with 16 keys of a round.
        stages: Rounds of a block's ring.
        blocks: Blocks that a multiprocessor holds at once.
    """

    warps: int
    stages: int
    blocks: int

    @property
    def static_shared_bytes(self) -> int:
        """Shared memory that the kernel declares itself."""
        sequences = MOST_SEQUENCES * (SPAN_BYTES + 2 * WORD_BYTES)
        return sequences + MOST_ROWS * WORD_BYTES * (1 + 3 * self.warps) + 64

    def shared_bytes(self, kv_format: KVFormat) -> int:
        """Dynamic shared memory of a block: queries and the ring."""
        codecs = (kv_format.key.codec, kv_format.value.codec)
        product = PRODUCT_KEYS * sum(codec.row_bytes(HEAD_DIM) for codec in codecs)
        return MOST_ROWS * HEAD_DIM * 2 + self.warps * self.stages * product

    def fits(self, kv_format: KVFormat, target: Target) -> bool:
        """Whether a multiprocessor has shared memory for the blocks."""
        num_bytes = self.shared_bytes(kv_format) + self.static_shared_bytes
        return num_bytes <= target.shared_for(self.blocks)


BLOCKS = 1
"""Blocks of a multiprocessor: rather one with all of its shared memory than several, whose segments
would have to be merged."""

WARPS, STAGES = (8, 4, 2), (4, 3, 2)

SEGMENT_BLOCKS = 132
"""Blocks that one sequence is cut for at most: enough to fill a large device, few enough for the partial
sums to stay small. It does not depend on other sequences, so neither do the results."""


def choose_variant(kv_format: KVFormat, target: Target) -> Variant | None:
    """The variant for a device: the most warps that fit, then the most stages.

    Returns:
        None if none fits the shared memory.
    """
    for warps, stages in product(WARPS, STAGES):
        variant = Variant(warps, stages, BLOCKS)
        if variant.fits(kv_format, target):
            return variant
    return None


def segments_of(num_key_value_heads: int) -> int:
    """Segments that the keys of a sequence are cut into at most."""
    return max(1, min(MAX_SEGMENTS, SEGMENT_BLOCKS // num_key_value_heads))


def decode_kernel(kv_format: KVFormat, variant: Variant) -> Kernel:
    """The instance for a format and variant."""
    numbers = (
        kv_format.key.codec.number,
        kv_format.value.codec.number,
        variant.warps,
        variant.stages,
        variant.blocks,
    )
    return Kernel(SOURCE, f"ninfer::paged_attention_kernel<{', '.join(map(str, numbers))}>")


def decode_plan(kv_format: KVFormat, num_key_value_heads: int, target: Target) -> Plan | None:
    """The launch for at most `MOST_ROWS` rows; None if no variant fits the shared memory."""
    variant = choose_variant(kv_format, target)
    if variant is None:
        return None
    return Plan(
        kernel=decode_kernel(kv_format, variant),
        rows=MOST_ROWS,
        threads=WARP_THREADS * variant.warps,
        shared_bytes=variant.shared_bytes(kv_format),
        segments=segments_of(num_key_value_heads),
        takes_heads=True,
        final=False,
        most_blocks=variant.blocks * target.multiprocessors,
    )


def decode_kernels(kv_format: KVFormat, target: Target) -> Iterator[Kernel]:
    """What models need on a kind of GPU."""
    variant = choose_variant(kv_format, target)
    if variant is not None:
        yield decode_kernel(kv_format, variant)
