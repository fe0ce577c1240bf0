"""fp8_e4m3fn_row_bf16 in `row_scale_v1`: an E4M3FN code per element and a bf16 scale per row.

Rows are not padded (layouts specification, section 5; formats specification, section 6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.checks import check_array, refuse_words
from ninfer_format.codecs.geometry import ByteArray, PlaneSize, word_bytes
from ninfer_format.codecs.matrix import MatrixCodec
from ninfer_format.codecs.small_floats import E4M3FN_MAGNITUDE, E4M3FN_NAN, E4M3FN_VALUES
from ninfer_format.dtypes import FP8_E4M3FN_ROW_BF16
from ninfer_format.layouts import ROW_SCALE_V1

_BF16_INFINITY = 0x7F80


@dataclass(frozen=True, slots=True)
class Fp8RowWords:
    """Words of a row-scaled matrix [N, K].

    Attributes:
        codes: E4M3FN words as uint8 [N, K].
        scales: bf16 words as uint16 [N].
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.uint16]


class Fp8RowCodec(MatrixCodec[Fp8RowWords]):
    """fp8_e4m3fn_row_bf16 in `row_scale_v1`; planes are ``code`` and ``scale``.

    Values are products in binary32, which may overflow to infinity.
    """

    numeric = FP8_E4M3FN_ROW_BF16
    storage = ROW_SCALE_V1
    judges_words = True

    def _plane_sizes(self) -> dict[str, PlaneSize]:
        return {"code": PlaneSize(self.shape[1]), "scale": PlaneSize(2)}

    # --- words -----------------------------------------------------------------------------

    def _count_rows(self, words: Fp8RowWords) -> int:
        return words.codes.shape[0] if words.codes.ndim else 0

    def _check_words(self, words: Fp8RowWords, first_row: int) -> None:
        check_array(words.codes, np.uint8, self.shape, f"{self.format} codes")
        check_array(words.scales, np.uint16, self.shape[:1], f"{self.format} scales")
        self._judge(words, first_row)

    def _judge(self, words: Fp8RowWords, first_row: int, first_column: int = 0) -> None:
        """Refuse illegal words of a block of the matrix."""
        # Also catches -0 and negative scales, whose words have the top bit set.
        illegal = words.scales >= _BF16_INFINITY
        refuse_words(words.scales, illegal, f"{self.format} scale word", "0 to 0x7f7f", first_row)
        magnitudes = words.codes & E4M3FN_MAGNITUDE
        what = f"{self.format} code"
        illegal = magnitudes == E4M3FN_NAN
        refuse_words(words.codes, illegal, what, "a number", first_row, first_column)
        zero_scales = words.scales == 0
        if zero_scales.any():
            illegal = zero_scales[:, np.newaxis] & (magnitudes != 0)
            legal = "0 or 0x80 under a zero scale"
            refuse_words(words.codes, illegal, what, legal, first_row, first_column)

    def _pack(self, words: Fp8RowWords) -> dict[str, ByteArray]:
        return {
            "code": word_bytes(words.codes, "u1"),
            "scale": word_bytes(words.scales, "<u2"),
        }

    def _unpack(self, payload: ByteArray) -> Fp8RowWords:
        words = self._block_words(payload, (0, self.rows), (0, self.shape[1]))
        return Fp8RowWords(words.codes, words.scales.astype(np.uint16))

    # --- blocks ----------------------------------------------------------------------------

    def _decode_units(
        self,
        payload: ByteArray,
        rows: tuple[int, int],
        columns: tuple[int, int],
        out: NDArray[np.float32],
    ) -> None:
        words = self._block_words(payload, rows, columns)
        self._judge(words, self.first_row + rows[0], columns[0])
        scales = words.scales.astype(np.uint32)
        scales <<= 16
        # Every byte is an index of the table; "clip" only spares NumPy the search for others.
        np.take(E4M3FN_VALUES, words.codes, out=out, mode="clip")
        with np.errstate(over="ignore"):
            out *= scales.view(np.float32)[:, np.newaxis]

    def _block_words(
        self, payload: ByteArray, rows: tuple[int, int], columns: tuple[int, int]
    ) -> Fp8RowWords:
        """View the words of a block."""
        codes = self._plane_rows(payload, "code", *rows)[:, slice(*columns)]
        return Fp8RowWords(codes, self._plane_rows(payload, "scale", *rows).view("<u2")[:, 0])
