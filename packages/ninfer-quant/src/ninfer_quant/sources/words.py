"""Words of quantized matrices: rows of them, one after the other, and what they mean.

The words of a row block are those of a tensor of only these rows, as `ninfer_format.codecs` defines
them. What all rows share (the divisor of nvfp4, the input multipliers of exl3) is in every block.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ninfer_format import Exl3Words, Fp8RowWords, GroupedWords, Nvfp4Words, get_format
from ninfer_format.codecs.exl3 import exl3_values
from ninfer_format.codecs.small_floats import E2M1_VALUES, E4M3FN_VALUES
from ninfer_format.dtypes import GroupedFormat
from ninfer_quant.errors import ConversionError

MatrixWords = GroupedWords | Fp8RowWords | Nvfp4Words | Exl3Words
"""Words of the formats that are not direct."""

NVFP4_GROUP = 16
TRELLIS_ROWS = 16


def word_rows(words: MatrixWords, begin: int, end: int) -> MatrixWords:
    """Rows [begin, end) of a block; of exl3 whole tiles of 16 rows."""
    rows = slice(begin, end)
    match words:
        case GroupedWords():
            return GroupedWords(words.codes[rows], words.scales[rows])
        case Fp8RowWords():
            return Fp8RowWords(words.codes[rows], words.scales[rows])
        case Nvfp4Words():
            return Nvfp4Words(words.codes[rows], words.scales[rows], words.divisors)
        case Exl3Words():
            tiles = words.tiles[begin // TRELLIS_ROWS : end // TRELLIS_ROWS]
            return Exl3Words(tiles, words.suh, words.svh[rows])


def joined_rows(blocks: Sequence[MatrixWords]) -> MatrixWords:
    """Blocks of one format below each other.

    Raises:
        ConversionError: The blocks differ in what all rows of a block share.
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    match first:
        case GroupedWords():
            return GroupedWords(_stacked(blocks, "codes"), _stacked(blocks, "scales"))
        case Fp8RowWords():
            return Fp8RowWords(_stacked(blocks, "codes"), _stacked(blocks, "scales"))
        case Nvfp4Words():
            _check_shared(blocks, "divisors")
            codes, scales = _stacked(blocks, "codes"), _stacked(blocks, "scales")
            return Nvfp4Words(codes, scales, first.divisors)
        case Exl3Words():
            _check_shared(blocks, "suh")
            return Exl3Words(_stacked(blocks, "tiles"), first.suh, _stacked(blocks, "svh"))


def word_values(format_name: str, words: MatrixWords) -> np.ndarray:
    """The values of a block, float32 ``[rows, K]``; of exl3 whole bands of 128 rows.

    Each is what a reader of an artifact with these words decodes, bit for bit. Words are not
    judged: illegal ones give values that are not finite, or their wrong meaning.
    """
    match words:
        case GroupedWords():
            return _grouped_values(format_name, words)
        case Fp8RowWords():
            scales = words.scales.view(ml_dtypes.bfloat16).astype(np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                products: np.ndarray = E4M3FN_VALUES[words.codes] * scales[:, np.newaxis]
            return products
        case Nvfp4Words():
            scales = np.repeat(E4M3FN_VALUES[words.scales], NVFP4_GROUP, axis=1)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                values: np.ndarray = E2M1_VALUES[words.codes] * scales
                values /= words.divisors.view(np.float32)[0]
            return values
        case Exl3Words():
            with np.errstate(over="ignore"):
                rounded: np.ndarray = exl3_values(words).astype(np.float32)
            return rounded


def _grouped_values(format_name: str, words: GroupedWords) -> np.ndarray:
    format_ = get_format(format_name)
    if not isinstance(format_, GroupedFormat):
        raise ConversionError(f"{format_name} is no grouped integer format")
    scales = words.scales.view(np.float16).astype(np.float32)
    spread = np.repeat(scales, format_.group, axis=1)[:, : words.codes.shape[1]]
    with np.errstate(invalid="ignore"):
        values: np.ndarray = words.codes.astype(np.float32) * spread
    return values


def _stacked(blocks: Sequence[MatrixWords], plane: str) -> np.ndarray:
    return np.concatenate([getattr(block, plane) for block in blocks])


def _check_shared(blocks: Sequence[MatrixWords], plane: str) -> None:
    first = getattr(blocks[0], plane)
    if not all(np.array_equal(first, getattr(block, plane)) for block in blocks[1:]):
        raise ConversionError(f"rows with different {plane} cannot be one matrix")
