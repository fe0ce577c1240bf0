"""The registry of storage layouts: how the words of one tensor lie in the bytes of its object."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer_format.errors import ArtifactError

PLANE_ALIGNMENT = 256
"""Planes inside an object start at multiples of this many bytes from the object's start."""


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """One way to store tensors.

    Attributes:
        name: Name in the directory.
        formats: Names of the numeric formats that may be stored this way.
        alignment: The logical payload offset of an object is a multiple of this.
    """

    name: str
    formats: tuple[str, ...]
    alignment: int = 256


CONTIGUOUS_LE_V1 = StorageLayout("contiguous_le_v1", ("bf16", "fp32", "int32"))
ROW_SPLIT_K128_V1 = StorageLayout(
    "row_split_k128_v1", ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16")
)

LAYOUTS: dict[str, StorageLayout] = {
    layout.name: layout for layout in (CONTIGUOUS_LE_V1, ROW_SPLIT_K128_V1)
}

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
