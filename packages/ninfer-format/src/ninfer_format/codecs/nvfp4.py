"""nvfp4 in `block_scale_k16_m128x4_v1`: E2M1 codes, E4M3FN block scales and binary32 divisors.

A block is 16 columns of a row. The matrix may be a stack of equal matrices that have a divisor each.
Scales lie in the order in which tensor cores read them: tiles of 128 rows and 4 blocks (layouts
specification, section 4; formats specification, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.checks import check_array, refuse_words
from ninfer_format.codecs.geometry import ByteArray, PlaneSize, word_bytes
from ninfer_format.codecs.matrix import MatrixCodec
from ninfer_format.codecs.nibbles import pack_nibbles, unpack_nibbles
from ninfer_format.codecs.small_floats import E2M1_VALUES, E4M3FN_NAN, E4M3FN_VALUES
from ninfer_format.dtypes import NVFP4
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import BLOCK_SCALE_K16_M128X4_V1

_GROUP = NVFP4.group
_TILE_ROWS = BLOCK_SCALE_K16_M128X4_V1.row_block
_TILE_GROUPS = BLOCK_SCALE_K16_M128X4_V1.column_block // _GROUP
_BINARY32_INFINITY = 0x7F800000

_BYTES = np.arange(256)
_PAIR_VALUES = np.stack([E2M1_VALUES[_BYTES & 15], E2M1_VALUES[_BYTES >> 4]], axis=1)
_PAIRS: NDArray[np.uint64] = _PAIR_VALUES.view(np.uint64).reshape(256)
"""The two values in each byte of codes, as one word: a table look-up then yields both."""


@dataclass(frozen=True, slots=True)
class Nvfp4Words:
    """Words of a block-scaled matrix [N, K] of d stacked matrices.

    Attributes:
        codes: E2M1 words as uint8 [N, K], one in each byte.
        scales: E4M3FN words as uint8 [N, K / 16], row by row.
        divisors: binary32 words as uint32 [d].
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    divisors: NDArray[np.uint32]


class Nvfp4Codec(MatrixCodec[Nvfp4Words]):
    """nvfp4 in `block_scale_k16_m128x4_v1`; planes are ``code``, ``scale`` and ``divisors``.

    A value is code times scale, which is exact, divided by the divisor in binary32.
    """

    numeric = NVFP4
    storage = BLOCK_SCALE_K16_M128X4_V1
    judges_words = True
    unit = (1, _GROUP)

    def _plane_sizes(self) -> dict[str, PlaneSize]:
        columns = self.shape[1]
        return {
            "code": PlaneSize(columns // 2),
            "scale": PlaneSize(columns // _GROUP),
            "divisors": PlaneSize(4, shared=True),
        }

    # --- words -----------------------------------------------------------------------------

    def _count_rows(self, words: Nvfp4Words) -> int:
        return words.codes.shape[0] if words.codes.ndim else 0

    def _check_words(self, words: Nvfp4Words, first_row: int) -> None:
        rows, columns = self.shape
        check_array(words.codes, np.uint8, (rows, columns), f"{self.format} codes")
        check_array(words.scales, np.uint8, (rows, columns // _GROUP), f"{self.format} scales")
        check_array(words.divisors, np.uint32, (self.divisors,), f"{self.format} divisors")
        refuse_words(words.codes, words.codes > 15, f"{self.format} code", "0 to 15", first_row)
        self._judge_scales(words.scales, first_row)
        self._judge_divisors(words.divisors, first_row)

    def _judge_scales(
        self, scales: NDArray[np.uint8], first_row: int, first_group: int = 0
    ) -> None:
        # Also catches -0 and negative scales, whose words have the top bit set.
        illegal = scales >= E4M3FN_NAN
        what = f"{self.format} scale word"
        refuse_words(scales, illegal, what, "0 to 0x7e", first_row, first_group)

    def _judge_divisors(self, divisors: NDArray[np.uint32], first_row: int) -> None:
        """Refuse illegal divisors of consecutive matrices, the first of which has `first_row`."""
        illegal = (divisors == 0) | (divisors >= _BINARY32_INFINITY)
        if illegal.any():
            index = int(np.argmax(illegal))
            row = first_row + index * self._matrix_rows
            raise ArtifactError(
                "codec",
                f"illegal {self.format} divisor word of the matrix with row {row}",
                expected="0x1 to 0x7f7fffff",
                found=f"{int(divisors[index]):#010x}",
            )

    def _pack(self, words: Nvfp4Words) -> dict[str, ByteArray]:
        return {
            "code": pack_nibbles(words.codes).reshape(-1),
            "scale": _swizzle(words.scales),
            "divisors": word_bytes(words.divisors, "<u4"),
        }

    def _unpack(self, payload: ByteArray) -> Nvfp4Words:
        rows = 0, self.rows
        groups = 0, self.shape[1] // _GROUP
        codes = unpack_nibbles(self._plane_rows(payload, "code", *rows))
        divisors = self._divisor_words(payload, (0, self.divisors)).astype(np.uint32)
        return Nvfp4Words(codes, self._scale_words(payload, rows, groups), divisors)

    # --- blocks ----------------------------------------------------------------------------

    def _decode_units(
        self,
        payload: ByteArray,
        rows: tuple[int, int],
        columns: tuple[int, int],
        out: NDArray[np.float32],
    ) -> None:
        groups = columns[0] // _GROUP, columns[1] // _GROUP
        scales = self._scale_words(payload, rows, groups)
        self._judge_scales(scales, self.first_row + rows[0], groups[0])
        packed = self._plane_rows(payload, "code", *rows)[:, columns[0] // 2 : columns[1] // 2]
        # Every byte is an index of the table; "clip" only spares NumPy the search for others.
        np.take(_PAIRS, packed, out=out.view(np.uint64), mode="clip")
        grouped = out.reshape(out.shape[0], -1, _GROUP)
        grouped *= E4M3FN_VALUES[scales][:, :, np.newaxis]
        with np.errstate(over="ignore"):
            out /= self._row_divisors(payload, rows)[:, np.newaxis]

    def _row_divisors(self, payload: ByteArray, rows: tuple[int, int]) -> NDArray[np.float32]:
        """The divisor of each row: float32 [rows]."""
        matrix_rows = self._matrix_rows
        first, last = rows[0] // matrix_rows, (rows[1] - 1) // matrix_rows + 1
        words = self._divisor_words(payload, (first, last))
        self._judge_divisors(words, self.first_row + first * matrix_rows)
        return words.view("<f4")[np.arange(*rows) // matrix_rows - first]

    def _divisor_words(self, payload: ByteArray, matrices: tuple[int, int]) -> NDArray[np.uint32]:
        plane = self.geometry.planes["divisors"]
        return payload[plane.offset : plane.end].view("<u4")[slice(*matrices)]

    def _scale_words(
        self, payload: ByteArray, rows: tuple[int, int], groups: tuple[int, int]
    ) -> NDArray[np.uint8]:
        """Scales of some rows and blocks, row by row: uint8 [rows, groups]."""
        tile = rows[0] // _TILE_ROWS
        first_row = tile * _TILE_ROWS
        last_row = -(-rows[1] // _TILE_ROWS) * _TILE_ROWS
        tiles = self._plane_rows(payload, "scale", first_row, last_row)
        first_tile, last_tile = groups[0] // _TILE_GROUPS, -(-groups[1] // _TILE_GROUPS)
        natural = _unswizzle(tiles, first_tile, last_tile)
        first_group = first_tile * _TILE_GROUPS
        return natural[
            rows[0] - first_row : rows[1] - first_row,
            groups[0] - first_group : groups[1] - first_group,
        ]


def _swizzle(scales: NDArray[np.uint8]) -> ByteArray:
    """Order scales [N, K / 16] as they are stored, flat."""
    rows, groups = scales.shape
    tiles = scales.reshape(rows // _TILE_ROWS, 4, _TILE_ROWS // 4, groups // _TILE_GROUPS, -1)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1)


def _unswizzle(stored: ByteArray, first_tile: int, last_tile: int) -> NDArray[np.uint8]:
    """Order stored scales [rows, K / 16] row by row, keeping some tiles of columns.

    Args:
        stored: Whole tiles of rows; the shape only says how many scales there are.
        first_tile: First tile along the columns.
        last_tile: End of the tiles along the columns.
    """
    rows, groups = stored.shape
    tiles = stored.reshape(rows // _TILE_ROWS, groups // _TILE_GROUPS, _TILE_ROWS // 4, 4, -1)
    chosen = tiles[:, first_tile:last_tile].transpose(0, 3, 2, 1, 4)
    return chosen.reshape(rows, -1)
