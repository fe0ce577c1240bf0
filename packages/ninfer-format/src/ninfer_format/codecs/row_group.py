"""q4_g32_fp16_rows in `row_group_v1`: 4-bit codes in offset binary, a scale for 32 columns.

Rows are not padded, so that tables of millions of short rows stay small (layouts specification,
section 6; formats specification, section 4.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.geometry import ByteArray, PlaneSize
from ninfer_format.codecs.grouped_words import GroupedWords, check_grouped_words
from ninfer_format.codecs.matrix import MatrixCodec
from ninfer_format.codecs.nibbles import pack_nibbles, unpack_nibbles
from ninfer_format.dtypes import Q4_G32_FP16_ROWS
from ninfer_format.layouts import ROW_GROUP_V1

_GROUP = Q4_G32_FP16_ROWS.group
_ZERO = 8
"""The nibble of code 0; `row_split_k128_v1` stores two's complement instead."""


class RowGroupCodec(MatrixCodec[GroupedWords]):
    """q4_g32_fp16_rows in `row_group_v1`; planes are ``code`` and ``scale``."""

    numeric = Q4_G32_FP16_ROWS
    storage = ROW_GROUP_V1
    judges_words = True
    unit = (1, _GROUP)

    def _plane_sizes(self) -> dict[str, PlaneSize]:
        columns = self.shape[1]
        return {"code": PlaneSize(columns // 2), "scale": PlaneSize(columns // _GROUP * 2)}

    def _count_rows(self, words: GroupedWords) -> int:
        return words.codes.shape[0] if words.codes.ndim else 0

    def _check_words(self, words: GroupedWords, first_row: int) -> None:
        check_grouped_words(words, self.numeric, self.shape, first_row)

    def _pack(self, words: GroupedWords) -> dict[str, ByteArray]:
        nibbles = (words.codes + np.int8(_ZERO)).astype(np.uint8)
        return {
            "code": pack_nibbles(nibbles).reshape(-1),
            "scale": np.ascontiguousarray(words.scales, dtype="<u2").reshape(-1).view(np.uint8),
        }

    def _unpack(self, payload: ByteArray) -> GroupedWords:
        return self._group_words(payload, (0, self.rows), (0, self.shape[1]))

    def _decode_units(
        self,
        payload: ByteArray,
        rows: tuple[int, int],
        columns: tuple[int, int],
        out: NDArray[np.float32],
    ) -> None:
        words = self._group_words(payload, rows, columns)
        check_grouped_words(words, self.numeric, out.shape, self.first_row + rows[0], columns[0])
        grouped = out.reshape(out.shape[0], -1, _GROUP)
        grouped[...] = words.codes.reshape(grouped.shape)
        grouped *= words.scales.view(np.float16).astype(np.float32)[:, :, np.newaxis]

    def _group_words(
        self, payload: ByteArray, rows: tuple[int, int], columns: tuple[int, int]
    ) -> GroupedWords:
        """Words of whole groups [rows, columns]."""
        packed = self._plane_rows(payload, "code", *rows)[:, columns[0] // 2 : columns[1] // 2]
        codes = unpack_nibbles(packed).view(np.int8)
        codes -= _ZERO
        scales = self._plane_rows(payload, "scale", *rows).view("<u2")
        scales = scales[:, columns[0] // _GROUP : columns[1] // _GROUP]
        return GroupedWords(codes, scales.astype(np.uint16))
