"""Grouped integers in `row_split_k128_v1`: codes of 4, 5, 6 or 8 bits and binary16 group scales.

An object has three planes. *base* holds the low four bits of every code, or whole 8-bit codes.
*high* holds the remaining one or two bits of 5- and 6-bit codes. *scale* holds one binary16 word
per group. Rows are padded to a multiple of 128 columns with code 0, so a row is a whole number of
groups and of bytes in every plane (layouts specification, section 3; formats specification,
section 4).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.geometry import ByteArray, PlaneSize, word_bytes
from ninfer_format.codecs.grouped_words import GroupedWords, check_grouped_words
from ninfer_format.codecs.matrix import MatrixCodec
from ninfer_format.codecs.nibbles import pack_nibbles, unpack_nibbles
from ninfer_format.dtypes import (
    Q4_G64_FP16,
    Q5_G64_FP16,
    Q6_G64_FP16,
    Q8_G32_FP16,
    GroupedFormat,
)
from ninfer_format.layouts import ROW_SPLIT_K128_V1, align_up

COLUMN_ALIGNMENT = 128
_GROUP_BASE_BYTES = 32


class GroupwiseIntCodec(MatrixCodec[GroupedWords]):
    """A grouped-integer format in `row_split_k128_v1`.

    Planes are ``base``, ``high`` (empty for 4 and 8 bits) and ``scale``. Values are always exact.
    """

    numeric: ClassVar[GroupedFormat]
    storage = ROW_SPLIT_K128_V1

    def _plane_sizes(self) -> dict[str, PlaneSize]:
        groups = self._padded_columns // self.numeric.group
        return {
            "base": PlaneSize(groups * _GROUP_BASE_BYTES),
            "high": PlaneSize(groups * self._group_high_bytes),
            "scale": PlaneSize(groups * 2),
        }

    @property
    def _padded_columns(self) -> int:
        return align_up(self.shape[1], COLUMN_ALIGNMENT)

    @property
    def _group_high_bytes(self) -> int:
        bits = self.numeric.bits
        return 0 if bits == 8 else self.numeric.group * (bits - 4) // 8

    # --- words -----------------------------------------------------------------------------

    def _count_rows(self, words: GroupedWords) -> int:
        return words.codes.shape[0] if words.codes.ndim else 0

    def _check_words(self, words: GroupedWords, first_row: int) -> None:
        check_grouped_words(words, self.numeric, self.shape, first_row)

    def _pack(self, words: GroupedWords) -> dict[str, ByteArray]:
        codes = _pad_columns(words.codes, self._padded_columns)
        scales = _pad_columns(words.scales, self._padded_columns // self.numeric.group)
        planes = {"base": self._pack_base(codes)}
        if self._group_high_bytes:
            planes["high"] = self._pack_high(codes)
        planes["scale"] = word_bytes(scales, "<u2")
        return planes

    def _unpack(self, payload: ByteArray) -> GroupedWords:
        rows, columns = self.shape
        groups = -(-columns // self.numeric.group)
        codes = self._unpack_codes(payload, (0, rows), (0, groups))[:, :columns]
        scales = self._scale_words(payload, (0, rows), (0, groups))
        return GroupedWords(codes, scales.astype(np.uint16))

    # --- groups ----------------------------------------------------------------------------

    def _decode_units(
        self,
        payload: ByteArray,
        rows: tuple[int, int],
        columns: tuple[int, int],
        out: NDArray[np.float32],
    ) -> None:
        group = self.numeric.group
        groups = columns[0] // group, columns[1] // group
        codes = self._unpack_codes(payload, rows, groups)
        scales = self._scale_words(payload, rows, groups).view("<f2").astype(np.float32)
        grouped = out.reshape(out.shape[0], -1, group)
        grouped[...] = codes.reshape(grouped.shape)
        # Words are not judged here: an illegal infinite scale times code 0 is a quiet NaN.
        with np.errstate(invalid="ignore"):
            grouped *= scales[:, :, np.newaxis]

    def _unpack_codes(
        self, payload: ByteArray, rows: tuple[int, int], groups: tuple[int, int]
    ) -> NDArray[np.int8]:
        """Codes of whole groups: int8 [rows, groups * G]."""
        base = self._group_bytes(payload, "base", _GROUP_BASE_BYTES, rows, groups)
        bits = self.numeric.bits
        if bits == 8:
            return base.view(np.int8)
        codes = unpack_nibbles(base).view(np.int8)
        if bits == 4:
            codes ^= 8
            codes -= 8
            return codes
        high = self._group_bytes(payload, "high", self._group_high_bytes, rows, groups)
        codes += _HIGH_PARTS[bits][high].view(np.int8).reshape(codes.shape)
        return codes

    def _scale_words(
        self, payload: ByteArray, rows: tuple[int, int], groups: tuple[int, int]
    ) -> NDArray[np.uint16]:
        return self._group_bytes(payload, "scale", 2, rows, groups).view("<u2")

    def _group_bytes(
        self,
        payload: ByteArray,
        plane: str,
        size: int,
        rows: tuple[int, int],
        groups: tuple[int, int],
    ) -> ByteArray:
        """View the bytes of some groups in a plane: uint8 [rows, groups * size]."""
        return self._plane_rows(payload, plane, *rows)[:, groups[0] * size : groups[1] * size]

    def _pack_base(self, codes: NDArray[np.int8]) -> ByteArray:
        if self.numeric.bits == 8:
            return codes.reshape(-1).view(np.uint8)
        return pack_nibbles(codes.view(np.uint8)).reshape(-1)

    def _pack_high(self, codes: NDArray[np.int8]) -> ByteArray:
        if self.numeric.bits == 5:
            return np.packbits(codes < 0, axis=-1, bitorder="little").reshape(-1)
        quads: NDArray[np.uint32] = ((codes >> 4) & 3).view("<u4")
        return (quads | (quads >> 6) | (quads >> 12) | (quads >> 18)).astype(np.uint8).reshape(-1)


class Q4Codec(GroupwiseIntCodec):
    """q4_g64_fp16."""

    numeric = Q4_G64_FP16
    unit = (1, Q4_G64_FP16.group)


class Q5Codec(GroupwiseIntCodec):
    """q5_g64_fp16."""

    numeric = Q5_G64_FP16
    unit = (1, Q5_G64_FP16.group)


class Q6Codec(GroupwiseIntCodec):
    """q6_g64_fp16."""

    numeric = Q6_G64_FP16
    unit = (1, Q6_G64_FP16.group)


class Q8Codec(GroupwiseIntCodec):
    """q8_g32_fp16."""

    numeric = Q8_G32_FP16
    unit = (1, Q8_G32_FP16.group)


def _pad_columns(array: NDArray[Any], columns: int) -> NDArray[Any]:
    if array.shape[1] == columns:
        return np.ascontiguousarray(array)
    padded = np.zeros((array.shape[0], columns), dtype=array.dtype)
    padded[:, : array.shape[1]] = array
    return padded


def _high_parts(bits: int) -> NDArray[Any]:
    """What the high bits in a byte add to the codes of its lanes: one word of int8 lanes per byte."""
    width = bits - 4
    lanes = 8 // width
    fields = (np.arange(256)[:, np.newaxis] >> (np.arange(lanes) * width)) & ((1 << width) - 1)
    signed = fields - ((fields >> (width - 1)) << width)
    return (16 * signed).astype(np.int8).view(np.dtype(f"<u{lanes}")).reshape(256)


_HIGH_PARTS = {bits: _high_parts(bits) for bits in (5, 6)}
