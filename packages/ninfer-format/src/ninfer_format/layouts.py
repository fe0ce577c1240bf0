"""The registry of storage layouts: how the words of one tensor lie in the bytes of its object."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_format.errors import ArtifactError

PLANE_ALIGNMENT = 256
"""Planes inside an object start at multiples of this many bytes from the object's start."""


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """One way to store tensors, and which tensors it can store.

    Attributes:
        name: Name in the directory.
        formats: Names of the numeric formats that may be stored this way.
        rank: Rank of a tensor, None for any.
        row_block: The number of rows is a multiple of this. So are the edges of a slice of rows
            that can be cut out of an object without re-packing.
        column_block: The number of columns is a multiple of this.
        has_divisors: Whether an object may be a stack of matrices that have divisors or scales of
            their own (`divisors` of a tensor record).
        bitrates: Legal `bitrate_half_bits` of a tensor record; empty where the member is absent.
        alignment: The logical payload offset of an object is a multiple of this.
    """

    name: str
    formats: tuple[str, ...]
    rank: int | None = 2
    row_block: int = 1
    column_block: int = 1
    has_divisors: bool = False
    bitrates: range = range(0)
    alignment: int = 256


CONTIGUOUS_LE_V1 = StorageLayout("contiguous_le_v1", ("bf16", "fp32", "int32"), rank=None)
ROW_SPLIT_K128_V1 = StorageLayout(
    "row_split_k128_v1", ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16")
)
BLOCK_SCALE_K16_M128X4_V1 = StorageLayout(
    "block_scale_k16_m128x4_v1",
    ("nvfp4",),
    row_block=128,
    column_block=64,
    has_divisors=True,
)
ROW_SCALE_V1 = StorageLayout("row_scale_v1", ("fp8_e4m3fn_row_bf16",))
ROW_GROUP_V1 = StorageLayout("row_group_v1", ("q4_g32_fp16_rows",), column_block=32)
TRELLIS_T16_V1 = StorageLayout(
    "trellis_t16_v1",
    ("exl3_mul1",),
    row_block=128,
    column_block=128,
    has_divisors=True,
    bitrates=range(2, 17),
)

LAYOUTS: dict[str, StorageLayout] = {
    layout.name: layout
    for layout in (
        CONTIGUOUS_LE_V1,
        ROW_SPLIT_K128_V1,
        BLOCK_SCALE_K16_M128X4_V1,
        ROW_SCALE_V1,
        ROW_GROUP_V1,
        TRELLIS_T16_V1,
    )
}
"""The layouts of tensors; the bytes of a resource lie as `RAW_BYTES_V1` says."""

RAW_BYTES_V1 = "raw_bytes_v1"
"""The only resource encoding: the bytes of the object are the resource."""


def get_layout(name: str) -> StorageLayout:
    """Look up a storage layout.

    Raises:
        ArtifactError: `encoding`: this release does not know the name.
    """
    try:
        return LAYOUTS[name]
    except KeyError:
        raise ArtifactError(
            "encoding",
            "unknown storage layout",
            expected=f"one of {', '.join(LAYOUTS)}",
            found=name,
            hint="a newer release may know it",
        ) from None


def align_up(value: int, alignment: int) -> int:
    """Round `value` up to a multiple of `alignment`."""
    return -(-value // alignment) * alignment
