"""Weights in the order in which tensor cores take them: records of 16 rows x 64 columns.

Records of a row tile follow one another, so that a run of columns is one run of bytes. In a record,
lane ``4g + q`` of a warp owns, in each of the four steps of 16 columns, the eight elements

    e: 0 (g, k) · 1 (g+8, k) · 2 (g, k+8) · 3 (g+8, k+8) · 4 (g, k+1) · 5 (g+8, k+1) ·
       6 (g, k+9) · 7 (g+8, k+9),   k = 16 · step + 2q,

of which the pair (e, e+4) is one register of the A operand of ``mma.m16n8k16``. The bytes of a
record, in this order:

=====  ==========================================================================================
codes  q4 and the lower 4 bits of q6: 32 lanes x 4 steps of a 32-bit word, element e at bits 4e; nvfp4
       has an order of bits in which half of the codes are taken out with one instruction
       (`_NVFP4_BITS`). q5: 32 lanes x 4 words, then 32 lanes x 1 word, whose halves hold three codes
       each and a bit of a 16th (`_Q5_PLACES`). 8 bits: two halves of 32 lanes x 2 steps x
       (0, 4, 1, 5), (2, 6, 3, 7); q8 with the top bit flipped. bf16: four steps of 32 lanes x
       (0, 4, 1, 5, 2, 6, 3, 7).
high   The remaining bits of q6: 32 lanes x 2 words, for two steps each. One rotation of the word
       brings the bits of elements 2p, 2p+1, 2p+4, 2p+5 of a step to bits 4, 8, 20 and 24, where they
       continue the low bits (`_HIGH_PLACES`).
scale  rows g and g+8 of a group side by side: q4, q5, q6 one pair for each g, q8 two, nvfp4 four.
=====  ==========================================================================================

Nothing is added or lost but padding: rows to 16 and columns to what the stored layout pads them to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.small_floats import E2M1_VALUES, E4M3FN_VALUES

ROWS, COLUMNS = 16, 64
"""Size of a record."""

Codes = NDArray[np.integer[Any]]
Places = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How weights of a format lie in records.

    Attributes:
        name: Numeric format of the weights.
        number: Its number in kernels (weight_record.cuh).
        code_bits: Bits of a code.
        groups: Scaled groups of a row in a record.
        scale_bytes: Bytes of a group's scale.
        column_alignment: What K is padded to.
        has_row_scale: Whether rows have a factor each, beside the records.
    """

    name: str
    number: int
    code_bits: int
    groups: int
    scale_bytes: int
    column_alignment: int = COLUMNS
    has_row_scale: bool = False

    @property
    def code_bytes(self) -> int:
        """Bytes of codes in a record."""
        return ROWS * COLUMNS * self.code_bits // 8

    @property
    def record_bytes(self) -> int:
        """Bytes of a record; a multiple of 16."""
        return self.code_bytes + ROWS * self.groups * self.scale_bytes

    def tiles(self, rows: int) -> int:
        """Row tiles of a matrix of so many rows."""
        return -(-rows // ROWS)

    def records(self, columns: int) -> int:
        """Records of a row tile of a matrix of so many columns."""
        return -(-columns // self.column_alignment) * self.column_alignment // COLUMNS

    def records_shape(self, shape: tuple[int, int]) -> tuple[int, int, int]:
        """Row tiles of a matrix, records of a row tile, and bytes of a record."""
        return self.tiles(shape[0]), self.records(shape[1]), self.record_bytes


RECORD_FORMATS = {
    record_format.name: record_format
    for record_format in (
        RecordFormat("q4_g64_fp16", 0, 4, 1, 2, 128),
        RecordFormat("q5_g64_fp16", 1, 5, 1, 2, 128),
        RecordFormat("q6_g64_fp16", 2, 6, 1, 2, 128),
        RecordFormat("q8_g32_fp16", 3, 8, 2, 2, 128),
        RecordFormat("nvfp4", 4, 4, 4, 1, has_row_scale=True),
        RecordFormat("fp8_e4m3fn_row_bf16", 5, 8, 0, 0, has_row_scale=True),
        RecordFormat("bf16", 6, 16, 0, 0),
    )
}

_NVFP4_BITS = ((9, 10, 11, 15), (0, 1, 2, 6), (3, 4, 5, 8), (12, 13, 14, 7))
"""Where bits 0 to 3 of elements 0 to 3 lie in the lower half of a word; 4 to 7 in the upper half."""

_BYTE_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]


def _q5_place(step: int, e: int) -> list[int]:
    """Where the bits of an element lie among the 160 of a lane."""
    register, half = e % 4, 16 * (e // 4)
    if register < 3:
        return [32 * step + half + 5 * register + bit for bit in range(5)]
    if step < 3:
        return [32 * 4 + half + 5 * step + bit for bit in range(5)]
    return [32 * word + half + 15 for word in range(5)]


def _high_place(step: int, e: int) -> list[int]:
    """Where the upper two bits of an element of q6 lie in the word of two steps."""
    pair = 2 * step + e // 2 % 2
    bit = (4 + 4 * (e % 2) + 16 * (e // 4) + 2 * (pair + (pair & 2))) % 32
    return [bit, bit + 1]


_LOW_PLACES = [range(4 * e, 4 * e + 4) for e in range(8)]
_NVFP4_PLACES = [[16 * half + bit for bit in bits] for half in range(2) for bits in _NVFP4_BITS]
_Q5_PLACES = [_q5_place(step, e) for step in range(4) for e in range(8)]
_HIGH_PLACES = [_high_place(step, e) for step in range(2) for e in range(8)]


def to_records(
    record_format: RecordFormat, codes: Codes, scales: Codes | None = None
) -> NDArray[np.uint8]:
    """Put the words of a matrix into records.

    Args:
        record_format: What they are.
        codes: [N, K] codes, or bf16 words.
        scales: [N, G] words of the groups' scales; None if the format has none in its records.

    Returns:
        [tiles, records, record_bytes].
    """
    N, K = codes.shape
    tiles, records = record_format.tiles(N), record_format.records(K)
    elements = _fragments(_padded(codes, tiles * ROWS, records * COLUMNS))
    parts = _code_parts(record_format, elements)
    if scales is not None:
        groups = record_format.groups
        words = _padded(scales, tiles * ROWS, records * groups)
        words = words.astype(np.uint8 if record_format.scale_bytes == 1 else np.uint16)
        pairs = words.reshape(tiles, 2, 8, records, groups).transpose(0, 3, 2, 4, 1)
        parts.append(_bytes(pairs))
    return np.concatenate(parts, axis=-1)


def from_records(
    record_format: RecordFormat, data: NDArray[np.uint8], shape: tuple[int, int]
) -> tuple[Codes, Codes | None]:
    """The words that `to_records` was given: codes [N, K] as int32, and scales [N, G].

    Args:
        record_format: What the records hold.
        data: [tiles, records, record_bytes].
        shape: N and K.
    """
    N, K = shape
    tiles, records, _ = data.shape
    codes = _from_fragments(_elements(record_format, data))[:N, :K]
    if not record_format.groups:
        return codes, None
    groups = record_format.groups
    word = "<u2" if record_format.scale_bytes == 2 else np.uint8
    at = record_format.record_bytes - ROWS * groups * record_format.scale_bytes
    pairs = np.ascontiguousarray(data[..., at:]).view(word).reshape(tiles, records, 8, groups, 2)
    words = pairs.transpose(0, 4, 2, 1, 3).reshape(tiles * ROWS, records * groups)
    return codes, words[:N, : -(-K * groups // COLUMNS)]


def decode_records(
    record_format: RecordFormat,
    data: NDArray[np.uint8],
    row_scale: NDArray[np.float32] | None,
    shape: tuple[int, int],
) -> NDArray[np.float32]:
    """The values of a matrix in records, [N, K] in float32.

    Args:
        record_format: What the records hold.
        data: [tiles, records, record_bytes].
        row_scale: [N] factors of the rows, None for 1.
        shape: N and K.
    """
    codes, scales = from_records(record_format, data, shape)
    if record_format.name == "bf16":
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    values = codes.astype(np.float32)
    if record_format.name == "nvfp4":
        values = E2M1_VALUES[codes]
    elif record_format.name == "fp8_e4m3fn_row_bf16":
        values = E4M3FN_VALUES[codes]
    if scales is not None:
        by_byte = record_format.scale_bytes == 1
        factors = E4M3FN_VALUES[scales] if by_byte else scales.view(np.float16).astype(np.float32)
        values *= np.repeat(factors, COLUMNS // record_format.groups, axis=1)[:, : shape[1]]
    if row_scale is not None:
        values *= row_scale[:, None]
    return values


def _padded(words: Codes, rows: int, columns: int) -> Codes:
    padded = np.zeros((rows, columns), words.dtype)
    padded[: words.shape[0], : words.shape[1]] = words
    return padded


def _fragments(codes: Codes) -> Codes:
    """[N, K] to [tiles, records, lane, step, element]."""
    N, K = codes.shape
    split = codes.reshape(
        N // ROWS, 2, 8, K // COLUMNS, 4, 2, 4, 2
    )  # tile, +8, g, ., step, +8, q, +1
    return split.transpose(0, 3, 2, 6, 4, 7, 5, 1).reshape(N // ROWS, K // COLUMNS, 32, 4, 8)


def _from_fragments(elements: Codes) -> Codes:
    tiles, records = elements.shape[:2]
    split = elements.reshape(tiles, records, 8, 4, 4, 2, 2, 2)
    return split.transpose(0, 7, 2, 1, 4, 6, 3, 5).reshape(tiles * ROWS, records * COLUMNS)


def _bytes(words: Codes) -> NDArray[np.uint8]:
    """The little-endian bytes of words [tiles, records, ...] as [tiles, records, bytes]."""
    flat = np.ascontiguousarray(words).reshape(*words.shape[:2], -1)
    return flat.view(np.uint8)


def _code_parts(record_format: RecordFormat, elements: Codes) -> list[NDArray[np.uint8]]:
    bits = record_format.code_bits
    if bits == 16:
        return [_bytes(elements[..., _BYTE_ORDER].astype(np.uint16).swapaxes(2, 3))]
    if bits == 8:
        flip = 0x80 if record_format.groups else 0
        words = (elements[..., _BYTE_ORDER].astype(np.uint8) ^ np.uint8(flip)).reshape(
            *elements.shape[:3], 2, 16
        )
        return [_bytes(words.swapaxes(2, 3))]
    unsigned = elements.astype(np.uint32) & np.uint32((1 << bits) - 1)
    if record_format.name == "nvfp4":
        return [_bytes(_gather(unsigned, _NVFP4_PLACES))]
    if bits == 5:
        words = _gather(unsigned.reshape(*unsigned.shape[:3], 32), _Q5_PLACES, 5)
        return [_bytes(words[..., :4]), _bytes(words[..., 4])]
    parts = [_bytes(_gather(unsigned, _LOW_PLACES))]
    if bits == 6:
        together = (unsigned >> np.uint32(4)).reshape(*unsigned.shape[:3], 2, 16)
        parts.append(_bytes(_gather(together, _HIGH_PLACES)))
    return parts


def _gather(elements: NDArray[np.uint32], places: Places, count: int = 1) -> NDArray[np.uint32]:
    """`count` words, of whose bits ``places[e][i]`` is bit i of element e."""
    words = np.zeros((*elements.shape[:-1], count), np.uint32)
    for e, place in enumerate(places):
        for i, bit in enumerate(place):
            found = elements[..., e] >> np.uint32(i) & np.uint32(1)
            words[..., bit // 32] |= found << np.uint32(bit % 32)
    return words


def _scatter(words: NDArray[np.uint32], places: Places) -> NDArray[np.uint32]:
    """The elements that `_gather` was given, of words [..., count]."""
    elements = np.zeros((*words.shape[:-1], len(places)), np.uint32)
    for e, place in enumerate(places):
        for i, bit in enumerate(place):
            found = words[..., bit // 32] >> np.uint32(bit % 32) & np.uint32(1)
            elements[..., e] |= found << np.uint32(i)
    return elements


def _elements(record_format: RecordFormat, data: NDArray[np.uint8]) -> Codes:
    """Codes as int32 [tiles, records, lane, step, element]."""
    bits, (tiles, records, _) = record_format.code_bits, data.shape
    head = np.ascontiguousarray(data[..., : record_format.code_bytes])
    order = np.argsort(_BYTE_ORDER)
    if bits == 16:
        words = head.view("<u2").reshape(tiles, records, 4, 32, 8).swapaxes(2, 3)
        return words[..., order].astype(np.int32)
    if bits == 8:
        halves = head.reshape(tiles, records, 2, 32, 16).swapaxes(2, 3)
        words = halves.reshape(tiles, records, 32, 4, 8)[..., order]
        if record_format.groups:
            return (words ^ np.uint8(0x80)).view(np.int8).astype(np.int32)
        return words.astype(np.int32)
    low, high = (np.ascontiguousarray(part).view("<u4") for part in np.split(head, [512], axis=-1))
    low = low.reshape(tiles, records, 32, 4)
    if record_format.name == "nvfp4":
        return _scatter(low[..., None], _NVFP4_PLACES).astype(np.int32)
    if bits == 5:
        words = np.concatenate([low, high[..., None]], axis=-1)
        codes = _scatter(words, _Q5_PLACES).reshape(tiles, records, 32, 4, 8)
    else:
        codes = _scatter(low[..., None], _LOW_PLACES)
    if bits == 6:
        pairs = high.reshape(tiles, records, 32, 2, 1)
        codes |= _scatter(pairs, _HIGH_PLACES).reshape(codes.shape) << np.uint32(4)
    signed = codes.astype(np.int32)
    return np.where(signed >> (bits - 1), signed - (1 << bits), signed)
