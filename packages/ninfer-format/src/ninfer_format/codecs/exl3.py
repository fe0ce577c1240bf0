"""exl3_mul1 in `trellis_t16_v1`: trellis-coded integers between Hadamard transforms and scales.

The matrix [N, K] is ``W = diag(svh) H Z H diag(suh)``: Z holds the integers of the trellis states, H
is the Hadamard transform in blocks of 128. N may be a stack of matrices that have an input vector
`suh` each (layouts specification, section 7; formats specification, section 7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.checks import check_array, refuse_words
from ninfer_format.codecs.geometry import ByteArray, PlaneSize
from ninfer_format.codecs.hadamard import HADAMARD_BLOCK, signed_sums
from ninfer_format.codecs.matrix import MatrixCodec
from ninfer_format.codecs.trellis import TILE, arrange_tiles, codebook, tile_bytes, unpack_states
from ninfer_format.dtypes import EXL3_MUL1
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import TRELLIS_T16_V1

_EXPONENT = 0x7F800000
_BLOCK_COLUMNS = 1024
"""Columns decoded at a time: the intermediate states then stay in the second-level cache."""


@dataclass(frozen=True, slots=True)
class Exl3Words:
    """Words of an exl3_mul1 matrix [N, K] of S stacked matrices at h half bits per weight.

    Attributes:
        tiles: Packed states, uint8 [N / 16, K / 16, 16 h]; see `ninfer_format.codecs.trellis`.
        suh: Multipliers of the inputs, binary32 words as uint32 [S, K].
        svh: Multipliers of the outputs, binary32 words as uint32 [N].
    """

    tiles: NDArray[np.uint8]
    suh: NDArray[np.uint32]
    svh: NDArray[np.uint32]


class Exl3Codec(MatrixCodec[Exl3Words]):
    """exl3_mul1 in `trellis_t16_v1`.

    Planes are ``trellis``, ``suh`` and ``svh``. Values are the exact ones rounded once to binary32.
    Decoding does not judge the multipliers: those that are not finite give values that are not.
    """

    numeric = EXL3_MUL1
    storage = TRELLIS_T16_V1
    unit = (HADAMARD_BLOCK, HADAMARD_BLOCK)

    def _plane_sizes(self) -> dict[str, PlaneSize]:
        columns = self.shape[1]
        return {
            "trellis": PlaneSize(columns // TILE * tile_bytes(self.bitrate_half_bits) // TILE),
            "suh": PlaneSize(4 * columns, shared=True),
            "svh": PlaneSize(4),
        }

    # --- words -----------------------------------------------------------------------------

    def _count_rows(self, words: Exl3Words) -> int:
        return words.svh.shape[0] if words.svh.ndim else 0

    def _check_words(self, words: Exl3Words, first_row: int) -> None:
        rows, columns = self.shape
        check_array(words.tiles, np.uint8, self._tiles_shape(rows), f"{self.format} tiles")
        check_array(words.suh, np.uint32, (self.divisors, columns), f"{self.format} suh")
        check_array(words.svh, np.uint32, (rows,), f"{self.format} svh")
        suh = f"{self.format} suh word of the rows from {first_row}"
        refuse_words(words.suh, _not_finite(words.suh), suh, "a finite number", 0)
        svh = f"{self.format} svh word"
        refuse_words(words.svh, _not_finite(words.svh), svh, "a finite number", first_row)

    def _pack(self, words: Exl3Words) -> dict[str, ByteArray]:
        return {
            "trellis": words.tiles.reshape(-1),
            "suh": np.ascontiguousarray(words.suh, dtype="<u4").reshape(-1).view(np.uint8),
            "svh": np.ascontiguousarray(words.svh, dtype="<u4").view(np.uint8),
        }

    def _unpack(self, payload: ByteArray) -> Exl3Words:
        planes = self.geometry.planes
        suh, svh = (
            payload[planes[name].offset : planes[name].end].view("<u4").astype(np.uint32)
            for name in ("suh", "svh")
        )
        return Exl3Words(self._tiles(payload, (0, self.rows)), suh.reshape(self.divisors, -1), svh)

    def _tiles_shape(self, rows: int) -> tuple[int, int, int]:
        return rows // TILE, self.shape[1] // TILE, tile_bytes(self.bitrate_half_bits)

    def _tiles(self, payload: ByteArray, rows: tuple[int, int]) -> NDArray[np.uint8]:
        packed = self._plane_rows(payload, "trellis", *rows)
        return packed.reshape(self._tiles_shape(rows[1] - rows[0]))

    # --- blocks ----------------------------------------------------------------------------

    def _decode_units(
        self,
        payload: ByteArray,
        rows: tuple[int, int],
        columns: tuple[int, int],
        out: NDArray[np.float32],
    ) -> None:
        suh_plane, svh_plane = (self.geometry.planes[name] for name in ("suh", "svh"))
        for row in range(rows[0], rows[1], HADAMARD_BLOCK):
            band = row, row + HADAMARD_BLOCK
            tiles = self._tiles(payload, band)
            first = self._place(suh_plane, row)
            suh = payload[first : first + 4 * self.shape[1]].view("<f4")
            svh = payload[svh_plane.offset : svh_plane.end].view("<f4")[slice(*band)]
            for column in range(columns[0], columns[1], _BLOCK_COLUMNS):
                part = slice(column, min(column + _BLOCK_COLUMNS, columns[1]))
                inputs = slice(part.start // TILE, part.stop // TILE)
                with np.errstate(over="ignore"):
                    out[
                        row - rows[0] : row - rows[0] + HADAMARD_BLOCK,
                        part.start - columns[0] : part.stop - columns[0],
                    ] = _band_values(tiles[:, inputs], suh[part], svh)


def exl3_values(words: Exl3Words) -> NDArray[np.float64]:
    """The exact values of an exl3_mul1 matrix, rounded only by the two scales in float64.

    Returns:
        float64 [N, K].

    Raises:
        ArtifactError: `codec`: arrays that do not fit each other, or a multiplier that is not
            finite; `encoding`: there is no such matrix.
    """
    if (words.tiles.ndim, words.suh.ndim) != (3, 2):
        raise ArtifactError(
            "codec",
            "these are no exl3_mul1 words",
            expected="tiles of rank 3 and suh of rank 2",
            found=f"rank {words.tiles.ndim} and {words.suh.ndim}",
        )
    outputs, inputs, num_bytes = words.tiles.shape
    sets = words.suh.shape[0]
    codec = Exl3Codec(
        (outputs * TILE, inputs * TILE), divisors=sets, bitrate_half_bits=num_bytes // TILE
    )
    codec.validate(words)
    suh, svh = words.suh.view(np.float32), words.svh.view(np.float32)
    values = np.empty(codec.shape, dtype=np.float64)
    for row in range(0, codec.rows, HADAMARD_BLOCK):
        band = slice(row, row + HADAMARD_BLOCK)
        tiles = words.tiles[band.start // TILE : band.stop // TILE]
        values[band] = _band_values(tiles, suh[row * sets // codec.rows], svh[band])
    return values


def _not_finite(words: NDArray[np.uint32]) -> NDArray[np.bool_]:
    bad: NDArray[np.bool_] = (words & _EXPONENT) == _EXPONENT
    return bad


def _band_values(
    tiles: NDArray[np.uint8], suh: NDArray[np.float32], svh: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Values of 128 rows: float64 [128, columns of `tiles`]."""
    z = arrange_tiles(codebook()[unpack_states(tiles)]).astype(np.float32)
    # |z| <= 510, so sums over 128 rows and 128 columns stay below 2^24 and are exact in any order.
    sums = signed_sums(signed_sums(z, axis=0), axis=1)
    values = sums.astype(np.float64)
    values /= HADAMARD_BLOCK
    # Words are not judged here: a multiplier that is not finite may meet a zero.
    with np.errstate(invalid="ignore"):
        values *= suh
        values *= svh[:, np.newaxis]
    return values
