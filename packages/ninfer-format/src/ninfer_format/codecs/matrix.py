"""Codecs of matrices: any range or block is decoded from the smallest blocks that cover it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.base import Codec, Words
from ninfer_format.codecs.geometry import ByteArray
from ninfer_format.layouts import align_up

_BLOCK_ELEMENTS = 1 << 18
"""Elements decoded at a time: the intermediate codes then stay in the second-level cache."""


class MatrixCodec(Codec[Words]):
    """A codec of matrices [N, K] with float32 values.

    Attributes:
        unit: Rows and columns that can only be decoded together; for instance the columns of a
            group. The last columns of a row may be fewer.
    """

    unit: ClassVar[tuple[int, int]] = (1, 1)

    @abstractmethod
    def _decode_units(
        self,
        payload: ByteArray,
        rows: tuple[int, int],
        columns: tuple[int, int],
        out: NDArray[np.float32],
    ) -> None:
        """Decode whole units into `out`, a contiguous array [rows, columns].

        Args:
            payload: The object's bytes.
            rows: Range [begin, end) of whole units.
            columns: Range of whole units; the end may be beyond K, inside the last unit.
            out: Where the values go; what goes beyond K is not used.

        Raises:
            ArtifactError: `codec`: an illegal word, if the codec judges words.
        """
        ...

    def _decode_range(self, payload: ByteArray, begin: int, end: int) -> NDArray[np.float32]:
        columns = self.shape[1]
        first, last = begin // columns, -(-end // columns)
        begin, end = begin - first * columns, end - first * columns
        if last - first <= 1:
            return self._decode_block(payload, (first, first + 1), (begin, end)).reshape(-1)
        values = self._decode_block(payload, (first, last), (0, columns))
        return values.reshape(-1)[begin:end]

    def _decode_block(
        self, payload: ByteArray, rows: tuple[int, int], columns: tuple[int, int]
    ) -> NDArray[np.float32]:
        values = np.empty((rows[1] - rows[0], columns[1] - columns[0]), dtype=np.float32)
        if not values.size:
            return values
        unit = self.unit[0]
        step = max(unit, _BLOCK_ELEMENTS // values.shape[1] // unit * unit)
        for first in range(rows[0] // unit * unit, rows[1], step):
            begin, end = max(first, rows[0]), min(first + step, rows[1])
            out = values[begin - rows[0] : end - rows[0]]
            self._decode_covering(payload, (begin, end), columns, out)
        return values

    def _decode_covering(
        self,
        payload: ByteArray,
        rows: tuple[int, int],
        columns: tuple[int, int],
        out: NDArray[np.float32],
    ) -> None:
        """Decode the units that cover a block, and keep the block."""
        all_rows = _cover(rows, self.unit[0])
        all_columns = _cover(columns, self.unit[1])
        if (all_rows, all_columns) == (rows, columns):
            self._decode_units(payload, rows, columns, out)
            return
        shape = all_rows[1] - all_rows[0], all_columns[1] - all_columns[0]
        values: NDArray[Any] = np.empty(shape, dtype=np.float32)
        self._decode_units(payload, all_rows, all_columns, values)
        row, column = rows[0] - all_rows[0], columns[0] - all_columns[0]
        out[...] = values[row : row + out.shape[0], column : column + out.shape[1]]


def _cover(bounds: tuple[int, int], unit: int) -> tuple[int, int]:
    return bounds[0] // unit * unit, align_up(bounds[1], unit)
