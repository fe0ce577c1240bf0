"""Matrices that are quantized already: their words in row blocks, to be copied unchanged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ninfer_quant.sources.words import MatrixWords, joined_rows


class EncodedSource(ABC):
    """A quantized matrix ``[N, K]``.

    Attributes:
        format: Numeric format of the words.
        shape: Rows and columns.
        label: What to call the source in messages.
        bitrate_half_bits: Rate of a trellis code, None for other formats.
        row_block: What the edges of the rows that are read are multiples of.
    """

    def __init__(
        self,
        format: str,
        shape: tuple[int, int],
        label: str,
        *,
        bitrate_half_bits: int | None = None,
        row_block: int = 1,
    ) -> None:
        self.format = format
        self.shape = shape
        self.label = label
        self.bitrate_half_bits = bitrate_half_bits
        self.row_block = row_block

    def read_rows(self, begin: int, end: int) -> MatrixWords:
        """The words of rows [begin, end), as of a matrix of only these rows.

        Raises:
            ValueError: The rows are empty, outside the matrix or not whole row blocks.
        """
        cut = [row for row in (begin, end) if row % self.row_block and row != self.shape[0]]
        if cut or not 0 <= begin < end <= self.shape[0]:
            raise ValueError(
                f"{self.label}: rows [{begin}, {end}) are not inside {self.shape[0]} rows, "
                f"or no multiples of {self.row_block}"
            )
        return self._read(begin, end)

    @abstractmethod
    def _read(self, begin: int, end: int) -> MatrixWords: ...

    def weight_divisor(self) -> np.float32 | None:
        """What all values are divided by; None for a format without, or where rows differ."""
        return None

    def input_divisor(self) -> np.float32 | None:
        """Calibrated divisor of the activations; None if there is none."""
        return None

    def input_scales(self) -> np.ndarray | None:
        """Words of the multipliers of the inputs of a trellis code, uint32 ``[K]``, else None."""
        return None


def select_encoded_rows(
    source: EncodedSource, ranges: Sequence[tuple[int, int]]
) -> EncodedSource | None:
    """Concatenate row ranges; None if the format cannot be cut there."""
    if any(row % source.row_block for rows in ranges for row in rows):
        return None
    return _SelectedRows(source, ranges)


class _SelectedRows(EncodedSource):
    def __init__(self, source: EncodedSource, ranges: Sequence[tuple[int, int]]) -> None:
        rows = sum(end - begin for begin, end in ranges)
        super().__init__(
            source.format,
            (rows, source.shape[1]),
            source.label,
            bitrate_half_bits=source.bitrate_half_bits,
            row_block=source.row_block,
        )
        self._source = source
        self._ranges = ranges
        self._starts = [0, *accumulate(end - begin for begin, end in ranges)]

    def _read(self, begin: int, end: int) -> MatrixWords:
        blocks = []
        for (first, last), start in zip(self._ranges, self._starts, strict=False):
            low, high = max(begin - start, 0), min(end - start, last - first)
            if low < high:
                blocks.append(self._source.read_rows(first + low, first + high))
        return joined_rows(blocks)

    def weight_divisor(self) -> np.float32 | None:
        return self._source.weight_divisor()

    def input_divisor(self) -> np.float32 | None:
        return self._source.input_divisor()

    def input_scales(self) -> np.ndarray | None:
        return self._source.input_scales()
