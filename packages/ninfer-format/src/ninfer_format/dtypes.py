"""The registry of numeric formats: what the stored words of a tensor mean.

A numeric format says nothing about where the words lie in an object; that is the storage layout
(`ninfer_format.layouts`). Names are exact strings and nothing is derived from them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_format.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class DirectFormat:
    """One word per element.

    Attributes:
        name: Name in the directory.
        word: Little-endian NumPy type of the word. Codecs move words as integers, so that NaN
            payloads and the sign of zero survive.
    """

    name: str
    word: np.dtype


@dataclass(frozen=True, slots=True)
class GroupedFormat:
    """A small integer code per element and a binary16 multiplier per group of a row.

    Attributes:
        name: Name in the directory.
        bits: Width of a code.
        group: Elements G that share one scale.
    """

    name: str
    bits: int
    group: int

    @property
    def qmax(self) -> int:
        """Largest code."""
        return (1 << (self.bits - 1)) - 1

    @property
    def qmin(self) -> int:
        """Smallest legal code; the 8-bit word for -128 is not used."""
        return -self.qmax if self.bits == 8 else -self.qmax - 1


@dataclass(frozen=True, slots=True)
class RowScaledFormat:
    """An E4M3FN code per element and a bf16 multiplier per row.

    Attributes:
        name: Name in the directory.
    """

    name: str


@dataclass(frozen=True, slots=True)
class BlockScaledFormat:
    """An E2M1 code per element, an E4M3FN multiplier per block of a row, and binary32 divisors.

    Attributes:
        name: Name in the directory.
        group: Elements of a row that share one multiplier.
    """

    name: str
    group: int


@dataclass(frozen=True, slots=True)
class TrellisFormat:
    """Integers coded by a path of 16-bit states, between two Hadamard transforms and two scales.

    Attributes:
        name: Name in the directory.
        tile: Rows and columns of the tile that one path fills.
        block: Rows and columns of a Hadamard block.
    """

    name: str
    tile: int
    block: int


NumericFormat = DirectFormat | GroupedFormat | RowScaledFormat | BlockScaledFormat | TrellisFormat

BF16 = DirectFormat("bf16", np.dtype("<u2"))
FP32 = DirectFormat("fp32", np.dtype("<u4"))
INT32 = DirectFormat("int32", np.dtype("<i4"))
Q4_G64_FP16 = GroupedFormat("q4_g64_fp16", bits=4, group=64)
Q5_G64_FP16 = GroupedFormat("q5_g64_fp16", bits=5, group=64)
Q6_G64_FP16 = GroupedFormat("q6_g64_fp16", bits=6, group=64)
Q8_G32_FP16 = GroupedFormat("q8_g32_fp16", bits=8, group=32)
Q4_G32_FP16_ROWS = GroupedFormat("q4_g32_fp16_rows", bits=4, group=32)
NVFP4 = BlockScaledFormat("nvfp4", group=16)
FP8_E4M3FN_ROW_BF16 = RowScaledFormat("fp8_e4m3fn_row_bf16")
EXL3_MUL1 = TrellisFormat("exl3_mul1", tile=16, block=128)

FORMATS: dict[str, NumericFormat] = {
    entry.name: entry
    for entry in (
        BF16,
        FP32,
        INT32,
        Q4_G64_FP16,
        Q5_G64_FP16,
        Q6_G64_FP16,
        Q8_G32_FP16,
        Q4_G32_FP16_ROWS,
        NVFP4,
        FP8_E4M3FN_ROW_BF16,
        EXL3_MUL1,
    )
}


def get_format(name: str) -> NumericFormat:
    """Look up a numeric format.

    Raises:
        ArtifactError: `encoding`: this release does not know the name.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise ArtifactError(
            "encoding",
            "unknown numeric format",
            expected=f"one of {', '.join(FORMATS)}",
            found=name,
            hint="a newer release may know it",
        ) from None
