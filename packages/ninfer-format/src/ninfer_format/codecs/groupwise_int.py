"""Grouped integers in `row_split_k128_v1`: codes of 4, 5, 6 or 8 bits and binary16 group scales.

An object has three planes. *base* holds the low four bits of every code, or whole 8-bit codes.
*high* holds the remaining one or two bits of 5- and 6-bit codes. *scale* holds one binary16 word
per group. Rows are padded to a multiple of 128 columns with code 0, so a row is a whole number of
groups and of bytes in every plane (layouts specification, section 3; formats specification,
section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.base import (
    ByteArray,
    Codec,
    Geometry,
    Plane,
    Shape,
    check_range,
    check_shape,
    check_size,
    refuse_variants,
)
from ninfer_format.dtypes import GroupedFormat
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import PLANE_ALIGNMENT, ROW_SPLIT_K128_V1, align_up

COLUMN_ALIGNMENT = 128
_BLOCK_ELEMENTS = 1 << 18
"""Elements decoded at a time: the intermediate codes then stay in the second-level cache."""
_LARGEST_FINITE_HALF = 0x7BFF


@dataclass(frozen=True, slots=True)
class GroupedWords:
    """Logical words of a grouped-integer matrix [N, K].

    Attributes:
        codes: int8 [N, K].
        scales: binary16 words as uint16 [N, ceil(K / G)].
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.uint16]

    def rows(self, begin: int, end: int) -> GroupedWords:
        """The words of rows [begin, end)."""
        return GroupedWords(self.codes[begin:end], self.scales[begin:end])


class GroupwiseIntCodec(Codec[GroupedWords]):
    """One grouped-integer format in `row_split_k128_v1`.

    Args:
        grouped: The numeric format.
    """

    layout = ROW_SPLIT_K128_V1.name

    def __init__(self, grouped: GroupedFormat) -> None:
        self.format = grouped.name
        self.grouped = grouped

    def geometry(
        self, shape: Shape, *, divisors: int = 1, bitrate_half_bits: int | None = None
    ) -> Geometry:
        """Planes ``base``, ``high`` (empty for 4 and 8 bits) and ``scale`` of a matrix [N, K]."""
        refuse_variants(self.layout, divisors, bitrate_half_bits)
        check_shape(shape, rank=2)
        rows = shape[0]
        row = self._row_sizes(shape)
        base = Plane(0, rows * row.base)
        high = Plane(align_up(base.end, PLANE_ALIGNMENT), rows * row.high)
        scale = Plane(align_up(high.end, PLANE_ALIGNMENT), rows * row.scale)
        return Geometry({"base": base, "high": high, "scale": scale}, check_size(scale.end))

    def encode_rows(
        self, words: GroupedWords, shape: Shape, first_row: int
    ) -> list[tuple[int, ByteArray]]:
        """Encode rows [first_row, first_row + rows of `words`)."""
        planes = self.geometry(shape).planes
        count = words.codes.shape[0] if words.codes.ndim else 0
        if not 0 <= first_row <= first_row + count <= shape[0]:
            raise ArtifactError(
                "codec",
                "rows are outside the matrix",
                expected=f"rows within [0, {shape[0]})",
                found=f"[{first_row}, {first_row + count})",
            )
        self._validate(words, (count, shape[1]), first_row)
        row = self._row_sizes(shape)
        codes = _pad_columns(words.codes, row.columns)
        scales = _pad_columns(words.scales, row.scale // 2)
        pieces = [(planes["base"].offset + first_row * row.base, self._pack_base(codes))]
        if row.high:
            high = self._pack_high(codes)
            pieces.append((planes["high"].offset + first_row * row.high, high))
        scale = scales.astype("<u2", copy=False).reshape(-1).view(np.uint8)
        pieces.append((planes["scale"].offset + first_row * row.scale, scale))
        return pieces

    def decode_words(self, payload: ByteArray, shape: Shape) -> GroupedWords:
        """Unpack codes and scales; padding lanes and groups are dropped."""
        geometry = self._check_payload(payload, shape)
        rows, columns = shape
        codes = np.empty((rows, columns), dtype=np.int8)
        step = self._rows_per_block(shape)
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            codes[begin:end] = self._unpack_rows(payload, geometry, shape, begin, end)[:, :columns]
        groups = -(-columns // self.grouped.group)
        scales = self._scale_words(payload, geometry, shape, 0, rows)[:, :groups]
        return GroupedWords(codes, scales.astype(np.uint16))

    def decode_range(
        self, payload: ByteArray, shape: Shape, begin: int, end: int
    ) -> NDArray[np.float32]:
        """Decode elements [begin, end) as float32: code times scale, which is always exact."""
        geometry = self._check_payload(payload, shape)
        check_range(shape, begin, end)
        columns = shape[1]
        first_row, last_row = begin // columns, -(-end // columns)
        values = np.empty((last_row - first_row, columns), dtype=np.float32)
        step = self._rows_per_block(shape)
        for row in range(first_row, last_row, step):
            stop = min(row + step, last_row)
            self._decode_rows(
                payload, geometry, shape, row, values[row - first_row : stop - first_row]
            )
        skipped = begin - first_row * columns
        return values.reshape(-1)[skipped : skipped + end - begin]

    def validate(self, words: GroupedWords, shape: Shape) -> None:
        """Check codes in range, scales +0 or positive finite, and zero codes under zero scales."""
        self._validate(words, shape, first_row=0)

    # --- rows ------------------------------------------------------------------------------

    def _row_sizes(self, shape: Shape) -> _RowSizes:
        columns = align_up(shape[1], COLUMN_ALIGNMENT)
        bits = self.grouped.bits
        return _RowSizes(
            columns=columns,
            base=columns if bits == 8 else columns // 2,
            high=0 if bits == 8 else columns * (bits - 4) // 8,
            scale=columns // self.grouped.group * 2,
        )

    def _rows_per_block(self, shape: Shape) -> int:
        return max(1, _BLOCK_ELEMENTS // align_up(shape[1], COLUMN_ALIGNMENT))

    def _decode_rows(
        self,
        payload: ByteArray,
        geometry: Geometry,
        shape: Shape,
        first_row: int,
        out: NDArray[np.float32],
    ) -> None:
        rows = out.shape[0]
        codes = self._unpack_rows(payload, geometry, shape, first_row, first_row + rows)
        words = self._scale_words(payload, geometry, shape, first_row, first_row + rows)
        scales = words.view("<f2").astype(np.float32)
        padded = out if codes.shape == out.shape else np.empty(codes.shape, dtype=np.float32)
        grouped = padded.reshape(rows, -1, self.grouped.group)
        grouped[...] = codes.reshape(grouped.shape)
        # Words are not judged here: an illegal infinite scale times code 0 is a quiet NaN.
        with np.errstate(invalid="ignore"):
            grouped *= scales[:, :, np.newaxis]
        if padded is not out:
            out[...] = padded[:, : out.shape[1]]

    def _unpack_rows(
        self, payload: ByteArray, geometry: Geometry, shape: Shape, begin: int, end: int
    ) -> NDArray[np.int8]:
        """Codes of rows [begin, end), with the padding lanes: int8 [rows, K padded]."""
        row = self._row_sizes(shape)
        base = _plane_rows(payload, geometry.planes["base"], row.base, begin, end)
        bits = self.grouped.bits
        if bits == 8:
            return base.view(np.int8)
        codes = _low_nibbles(base)
        if bits == 4:
            codes ^= 8
            codes -= 8
            return codes
        high = _plane_rows(payload, geometry.planes["high"], row.high, begin, end)
        codes += _HIGH_PARTS[bits][high].view(np.int8).reshape(codes.shape)
        return codes

    def _scale_words(
        self, payload: ByteArray, geometry: Geometry, shape: Shape, begin: int, end: int
    ) -> NDArray[np.uint16]:
        row = self._row_sizes(shape)
        return _plane_rows(payload, geometry.planes["scale"], row.scale, begin, end).view("<u2")

    def _pack_base(self, codes: NDArray[np.int8]) -> ByteArray:
        if self.grouped.bits == 8:
            return codes.reshape(-1).view(np.uint8)
        pairs: NDArray[np.uint16] = (codes & 15).view("<u2")
        return (pairs | (pairs >> 4)).astype(np.uint8).reshape(-1)

    def _pack_high(self, codes: NDArray[np.int8]) -> ByteArray:
        if self.grouped.bits == 5:
            return np.packbits(codes < 0, axis=-1, bitorder="little").reshape(-1)
        quads: NDArray[np.uint32] = ((codes >> 4) & 3).view("<u4")
        return (quads | (quads >> 6) | (quads >> 12) | (quads >> 18)).astype(np.uint8).reshape(-1)

    # --- words -----------------------------------------------------------------------------

    def _validate(self, words: GroupedWords, shape: Shape, first_row: int) -> None:
        group = self.grouped.group
        rows, columns = shape
        self._check_array(words.codes, np.dtype(np.int8), shape, "codes")
        scale_shape = (rows, -(-columns // group))
        self._check_array(words.scales, np.dtype(np.uint16), scale_shape, "scales")
        bad_codes = (words.codes < self.grouped.qmin) | (words.codes > self.grouped.qmax)
        if bad_codes.any():
            raise self._illegal("code", words.codes, bad_codes, first_row)
        # Also catches -0 and negative scales, whose words have the top bit set.
        bad_scales = words.scales > _LARGEST_FINITE_HALF
        if bad_scales.any():
            raise self._illegal("scale word", words.scales, bad_scales, first_row)
        zero_scales = words.scales == 0
        if not zero_scales.any():
            return
        group_starts = np.arange(0, columns, group)
        bad_groups = zero_scales & np.logical_or.reduceat(words.codes, group_starts, axis=1)
        if bad_groups.any():
            row, column = (int(index) for index in np.argwhere(bad_groups)[0])
            raise ArtifactError(
                "codec",
                f"{self.format} group under a zero scale has a code that is not 0: "
                f"row {first_row + row}, columns from {column * group}",
            )

    def _check_array(
        self, array: NDArray[Any], dtype: np.dtype[Any], shape: Shape, name: str
    ) -> None:
        if array.shape != shape or array.dtype != dtype:
            raise ArtifactError(
                "codec",
                f"{name} do not fit a {self.format} matrix",
                expected=f"{dtype.name} {list(shape)}",
                found=f"{array.dtype.name} {list(array.shape)}",
            )

    def _illegal(
        self, what: str, words: NDArray[Any], bad: NDArray[np.bool_], first_row: int
    ) -> ArtifactError:
        row, column = (int(index) for index in np.argwhere(bad)[0])
        legal = f"{self.grouped.qmin} to {self.grouped.qmax}" if what == "code" else "0 to 0x7bff"
        word = int(words[row, column])
        return ArtifactError(
            "codec",
            f"illegal {self.format} {what} at [{first_row + row}, {column}]",
            expected=legal,
            found=word if what == "code" else f"{word:#06x}",
        )


@dataclass(frozen=True, slots=True)
class _RowSizes:
    """Padded columns of one row and its bytes in each plane."""

    columns: int
    base: int
    high: int
    scale: int


def _plane_rows(
    payload: ByteArray, plane: Plane, row_bytes: int, begin: int, end: int
) -> ByteArray:
    first = plane.offset + begin * row_bytes
    return payload[first : first + (end - begin) * row_bytes].reshape(end - begin, row_bytes)


def _pad_columns(array: NDArray[Any], columns: int) -> NDArray[Any]:
    if array.shape[1] == columns:
        return np.ascontiguousarray(array)
    padded = np.zeros((array.shape[0], columns), dtype=array.dtype)
    padded[:, : array.shape[1]] = array
    return padded


def _low_nibbles(base: ByteArray) -> NDArray[np.int8]:
    """Both nibbles of every byte, low one first, as 0..15: int8 [rows, 2 * bytes]."""
    pairs = base.astype("<u2")
    pairs |= pairs << 4
    pairs &= 0x0F0F
    return pairs.view(np.int8)


def _high_parts(bits: int) -> NDArray[Any]:
    """What the high bits in a byte add to the codes of its lanes: one word of int8 lanes per byte."""
    width = bits - 4
    lanes = 8 // width
    fields = (np.arange(256)[:, np.newaxis] >> (np.arange(lanes) * width)) & ((1 << width) - 1)
    signed = fields - ((fields >> (width - 1)) << width)
    return (16 * signed).astype(np.int8).view(np.dtype(f"<u{lanes}")).reshape(256)


_HIGH_PARTS = {bits: _high_parts(bits) for bits in (5, 6)}
