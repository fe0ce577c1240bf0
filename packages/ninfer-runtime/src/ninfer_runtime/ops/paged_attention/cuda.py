"""Launch of `paged_attention` on an NVIDIA GPU."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_runtime.cuda.arguments import device_of, floats, integers, longs, pointer
from ninfer_runtime.cuda.kernel import Kernel
from ninfer_runtime.cuda.launch import POINTER, Argument, Geometry
from ninfer_runtime.cuda.rows import element_strides, is_aligned, is_contiguous
from ninfer_runtime.cuda.target import Target
from ninfer_runtime.device.dtypes import STORAGE, DType
from ninfer_runtime.device.tensor import Tensor
from ninfer_runtime.errors import UnsupportedOpError
from ninfer_runtime.kv.formats import KV_FORMATS, KVFormat
from ninfer_runtime.kv.pages import KVPages
from ninfer_runtime.kv.row_codecs import HEAD_DIM, RowCodec

OP = "paged_attention"
SOURCE = "ops/paged_attention/paged_attention.cu"
TILE_KEYS = 16
OCTET_ROWS = 8
MERGE_THREADS = 256
MAX_SEGMENTS = 256
"""The merging block has one thread a segment."""

SUM_STRIDE_BYTES = (HEAD_DIM + 8) * 4
STATIC_SHARED_BYTES = 1024
LOG2_E = 1.4426950408889634


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

    def shared_bytes(self, kv_format: KVFormat) -> int:
        """Dynamic shared memory of a block: queries and rings, later the groups' sums."""
        tile = _tile_bytes(kv_format.key.codec) + _tile_bytes(kv_format.value.codec)
        rings = self.rows * HEAD_DIM * 2 + self.key_groups * self.stages * tile
        sums = self.key_groups * self.rows * SUM_STRIDE_BYTES if self.key_groups > 1 else 0
        return max(rings, sums)


SHAPES = ((1, 1, (4, 2)), (1, 2, (2, 1)), (2, 2, (2, 1)), (2, 4, (2, 1)), (2, 8, (1,)))
"""Octets, row warps and key groups: the fewest rows that suffice are taken, then the most groups."""

STAGES = (4, 3, 2)

BLOCK_SHARES = (3, 2, 1)
"""Blocks of a multiprocessor: as many as fit with three stages, or with two if that gives more."""

SEGMENT_BLOCKS = {8: 384, 16: 256, 32: 256, 64: 128, 128: 64}
"""Blocks that one sequence is cut into at most, by the rows of a block: enough to fill a large
device, few enough for the partial sums to stay small. It does not depend on other sequences, so
neither do the results."""

BF16_SEGMENT_BLOCKS = 128
"""The same for bf16 pages: one block fills a multiprocessor's shared memory."""


def choose_variant(kv_format: KVFormat, rows: int, target: Target) -> Variant | None:
    """The variant for a number of rows (columns times heads of a key head).

    Args:
        kv_format: Format of the pages.
        rows: Rows of a sequence and key head.
        target: Kind of GPU.

    Returns:
        None if none fits the shared memory.
    """
    wanted = min(rows, max(SEGMENT_BLOCKS))
    for octets, row_warps, groups in SHAPES:
        if OCTET_ROWS * octets * row_warps < wanted:
            continue
        for key_groups in groups:
            for blocks in BLOCK_SHARES if octets == 1 else BLOCK_SHARES[1:]:
                for stages in STAGES:
                    variant = Variant(octets, row_warps, key_groups, stages)
                    num_bytes = variant.shared_bytes(kv_format) + STATIC_SHARED_BYTES
                    if num_bytes <= target.shared_for(blocks):
                        return variant
    return None


def segments_of(
    kv_format: KVFormat, variant: Variant, num_key_value_heads: int, row_blocks: int
) -> int:
    """Segments that the keys of a sequence are cut into at most."""
    blocks = SEGMENT_BLOCKS[variant.rows]
    if kv_format.name == "bf16":
        blocks = min(blocks, BF16_SEGMENT_BLOCKS)
    return max(1, min(MAX_SEGMENTS, blocks // (num_key_value_heads * row_blocks)))


def partial_bytes(count: int) -> tuple[int, int]:
    """Bytes of the weights and of the sums that so many segments of rows leave to be merged."""
    return count * 2 * 4, count * HEAD_DIM * 4


def attention_kernel(kv_format: KVFormat, variant: Variant, *, final: bool) -> Kernel:
    """The instance for a format and variant; `final` for one segment."""
    numbers = (
        kv_format.key.codec.number,
        kv_format.value.codec.number,
        variant.octets,
        variant.row_warps,
        variant.key_groups,
        variant.stages,
    )
    arguments = ", ".join(map(str, numbers))
    name = f"ninfer::paged_attention_kernel<{arguments}, {str(final).lower()}>"
    return Kernel(SOURCE, name)


def merge_kernel(kv_format: KVFormat) -> Kernel:
    """The instance that merges segments."""
    transformed = str(kv_format.value.transformed).lower()
    return Kernel(SOURCE, f"ninfer::paged_attention_merge_kernel<{transformed}>")


def kernels(target: Target) -> list[Kernel]:
    """What models need: every format, for few and for many rows."""
    found = []
    for kv_format in KV_FORMATS.values():
        for rows in SEGMENT_BLOCKS:
            variant = choose_variant(kv_format, rows, target)
            if variant is not None:
                found.append(attention_kernel(kv_format, variant, final=False))
                if variant.key_groups == 1:
                    found.append(attention_kernel(kv_format, variant, final=True))
        found.append(merge_kernel(kv_format))
    return list(dict.fromkeys(found))


def paged_attention(
    query: Tensor,
    gate: Tensor,
    tables: Tensor,
    table_rows: Tensor,
    before: Tensor,
    columns: Tensor,
    out: Tensor,
    *,
    pages: KVPages,
    scale: float,
) -> None:
    """See the contract in the package."""
    device = device_of(query)
    B, C, H, _ = query.shape
    KH = pages.num_key_value_heads
    rows = C * H // KH
    variant = choose_variant(pages.format, rows, device.target)
    strided = (query, gate)
    if (
        variant is None
        or any(tensor.dtype is not DType.BF16 for tensor in (*strided, out))
        or not all(map(is_aligned, strided))
        or not all(map(is_contiguous, (*pages.tensors, tables, table_rows, before, columns, out)))
    ):
        raise UnsupportedOpError(OP, query.device.kind, detail=f"{query!r}, {gate!r}, {out!r}")
    if B == 0 or C == 0:
        return
    row_blocks = -(-rows // variant.rows)
    segments = segments_of(pages.format, variant, KH, row_blocks)
    final = segments == 1 and variant.key_groups == 1
    spans = [pointer(before), pointer(columns)]
    gate_arguments = [pointer(gate), *longs(*element_strides(gate)[:3])]
    with device.workspace.frame():
        weights, sums = (
            0 if final else device.workspace.take(num_bytes)
            for num_bytes in partial_bytes(B * KH * rows * segments)
        )
        device.launch(
            attention_kernel(pages.format, variant, final=final),
            Geometry(
                blocks=B * KH * row_blocks * segments,
                threads=32 * variant.row_warps * variant.key_groups,
                shared_bytes=variant.shared_bytes(pages.format),
                overlap=True,
            ),
            [
                pointer(query),
                *longs(*element_strides(query)[:3]),
                *gate_arguments,
                pointer(out),
                *page_arguments(pages),
                pointer(tables),
                *integers(tables.shape[1]),
                pointer(table_rows),
                *spans,
                (sums, POINTER),
                (weights, POINTER),
                *integers(C, KH, H // KH, row_blocks, segments),
                *floats(scale * LOG2_E),
            ],
        )
        if final:
            return
        device.launch(
            merge_kernel(pages.format),
            Geometry(blocks=B * KH * rows, threads=MERGE_THREADS, overlap=True),
            [
                (sums, POINTER),
                (weights, POINTER),
                *gate_arguments,
                pointer(out),
                *spans,
                *integers(C, KH, H // KH, segments),
            ],
        )


def page_arguments(pages: KVPages) -> list[Argument]:
    """The four planes of the pages: codes and scales of keys, codes and scales of values."""
    return [
        (0, POINTER) if plane is None else pointer(plane)
        for planes in (pages.key, pages.value)
        for plane in (planes.codes, planes.scales)
    ]


def _tile_bytes(codec: RowCodec) -> int:
    """Bytes of the rows of a tile in shared memory."""
    scales = 0
    if codec.scale_dtype is not None:
        scales = codec.scale_width * STORAGE[codec.scale_dtype].itemsize
    codes = codec.code_width * STORAGE[codec.code_dtype].itemsize
    return TILE_KEYS * codes + -(-TILE_KEYS * scales // 16) * 16
