"""One tensor object in the payload: reading all of it, some rows, or some elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.base import Codec
from ninfer_format.codecs.geometry import ByteArray
from ninfer_format.container.location import located
from ninfer_format.container.payload import Payload
from ninfer_format.container.schema import TensorRecord
from ninfer_format.layouts import align_up

SLICE_BYTES = 2**18
"""Encoded size of the slices in which an object is read that lies in several files."""


class StoredTensor:
    """A tensor whose record was checked.

    An object inside one file is decoded where it is mapped. One that lies across files is read in
    slices of its rows, so that it is never joined in memory, and rows in files that are there can
    be read without the others.

    Args:
        payload: The logical payload.
        record: The directory's record.
        codec: The codec of the record.
    """

    def __init__(self, payload: Payload, record: TensorRecord, codec: Codec[Any]) -> None:
        self.record = record
        self.codec = codec
        self._payload = payload

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the decoded values."""
        return np.dtype(np.int32 if self.record.format == "int32" else np.float32)

    @property
    def row_elements(self) -> int:
        """Logical elements of a row."""
        return self.record.elements // self.codec.rows

    def view(self) -> ByteArray:
        """The encoded bytes: uint8 [num_bytes], read-only."""
        return self._payload.view(self.record.offset, self.record.num_bytes)

    def row_slice(self, begin: int, end: int) -> tuple[Codec[Any], ByteArray]:
        """Rows [begin, end) as a tensor of their own: its codec, and its payload uint8 [bytes].

        Raises:
            ArtifactError: `codec`: the layout cannot cut there; `part` or `framing`.
            OSError: A file cannot be read.
        """
        with located(object_id=self.record.id):
            rows = self.codec.row_slice(begin, end)
        for span in rows.spans:
            self._payload.require(self.record.offset + span.source, span.length)
        data = np.zeros(rows.codec.geometry.num_bytes, np.uint8)
        for span in rows.spans:
            target = data[span.target : span.target + span.length]
            self._payload.read_into(self.record.offset + span.source, target)
        return rows.codec, data

    def slices(
        self, begin: int, end: int, max_bytes: int = SLICE_BYTES
    ) -> Iterator[tuple[int, int]]:
        """Cut rows [begin, end) where the layout can be cut.

        Args:
            begin: First row.
            end: The row after the last one.
            max_bytes: Encoded size of a slice, unless the smallest one that can be cut is larger.

        Yields:
            First row and the row after the last one; the outer ones may lie outside [begin, end).
        """
        block = self.codec.row_block or 1
        row_bytes = self.record.num_bytes / self.codec.rows
        step = max(block, int(max_bytes / row_bytes) // block * block)
        matrix_rows = self.codec.rows // self.codec.divisors
        first, end = begin // block * block, align_up(end, block)
        while first < end:
            last = min(end, first + step, (first // matrix_rows + 1) * matrix_rows)
            yield first, last
            first = last

    def require(self, begin: int, end: int) -> None:
        """Open and check every file that logical elements [begin, end) need."""
        if self._is_read_whole:
            self._payload.require(self.record.offset, self.record.num_bytes)
            return
        for first, last in self.slices(begin // self.row_elements, -(-end // self.row_elements)):
            for span in self.codec.row_slice(first, last).spans:
                self._payload.require(self.record.offset + span.source, span.length)

    def elements(self, begin: int, end: int) -> NDArray[Any]:
        """Values of logical elements [begin, end), flat; only the rows touched are read."""
        with located(object_id=self.record.id):
            return self._elements(begin, end)

    def _elements(self, begin: int, end: int) -> NDArray[Any]:
        if self._is_read_whole:
            return self.codec.decode_range(self.view(), begin, end)
        self.require(begin, end)
        width = self.row_elements
        out = np.empty(end - begin, self.dtype)
        for first, last in self.slices(begin // width, -(-end // width)):
            codec, data = self.row_slice(first, last)
            low, high = max(begin, first * width), min(end, last * width)
            values = codec.decode_range(data, low - first * width, high - first * width)
            out[low - begin : high - begin] = values
        return out

    def block(self, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[Any]:
        """Values of some rows and columns of a matrix; only the columns touched are decoded."""
        with located(object_id=self.record.id):
            return self._block(rows, columns)

    def _block(self, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[Any]:
        if self._is_read_whole:
            return self.codec.decode_block(self.view(), rows, columns)
        begin, end = rows
        self.require(begin * self.row_elements, end * self.row_elements)
        out = np.empty((end - begin, columns[1] - columns[0]), self.dtype)
        for first, last in self.slices(begin, end):
            codec, data = self.row_slice(first, last)
            low, high = max(begin, first), min(end, last)
            values = codec.decode_block(data, (low - first, high - first), columns)
            out[low - begin : high - begin] = values
        return out

    @property
    def _is_read_whole(self) -> bool:
        return self.codec.row_block is None or self._payload.in_one_file(
            self.record.offset, self.record.num_bytes
        )
