"""Tensors as flat sequences of elements that can be read in ranges.

A converter reads a few rows at a time whatever the size of a tensor, so a source never hands out
more than it is asked for. Selecting rows, reshaping and permuting axes are sources themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ninfer_quant.errors import ConversionError
from ninfer_quant.sources.encoded import EncodedSource, select_encoded_rows

TRANSPOSE_LIMIT_ELEMENTS = 1 << 22
"""Largest tensor whose axes may be permuted, because that needs all of it in memory."""


class LogicalSource(ABC):
    """A tensor whose elements are read in flat C-order ranges.

    Attributes:
        shape: Logical shape.
        label: What to call the source in messages, usually the name of a checkpoint's tensor.
        tensors: Names of the tensors that the values come from; `label` unless said otherwise.
        origin: The checkpoint that has these tensors; None if that is not known.
    """

    def __init__(
        self,
        shape: Sequence[int],
        label: str,
        tensors: Sequence[str] | None = None,
        origin: Path | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self.label = label
        self.tensors = (label,) if tensors is None else tuple(tensors)
        self.origin = origin

    @property
    def num_elements(self) -> int:
        """Product of the dimensions, 1 for a scalar."""
        return prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What `read_values` returns, found without reading a value."""
        return self.read_values(0, 0).dtype

    @property
    def encoded(self) -> EncodedSource | None:
        """The same tensor as the words of a quantized format; None if it is not encoded."""
        return None

    def read_values(self, begin: int, end: int) -> np.ndarray:
        """Read the elements ``[begin, end)``: a flat array of the stored dtype.

        Raises:
            ValueError: The range is not inside the tensor.
        """
        if not 0 <= begin <= end <= self.num_elements:
            raise ValueError(
                f"{self.label}: range [{begin}, {end}) is not inside {self.num_elements} elements"
            )
        return self._read(begin, end)

    @abstractmethod
    def _read(self, begin: int, end: int) -> np.ndarray: ...


class ArraySource(LogicalSource):
    """An array in memory."""

    def __init__(self, array: np.ndarray, label: str = "array") -> None:
        super().__init__(array.shape, label)
        self._values = array.reshape(-1)

    def _read(self, begin: int, end: int) -> np.ndarray:
        return self._values[begin:end]


class HasShape(Protocol):
    """What a checkpoint says about a tensor, as far as sources ask."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in C order."""
        ...


class TensorReader(Protocol):
    """A checkpoint whose tensors are read by name in ranges of elements.

    Attributes:
        path: File or folder.
    """

    path: Path

    def info(self, name: str) -> HasShape:
        """What the checkpoint says about a tensor."""
        ...

    def read(self, name: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Read elements [begin, end) of a tensor, flat in C order."""
        ...


class TensorSource(LogicalSource):
    """One tensor of a checkpoint as it is stored."""

    def __init__(self, checkpoint: TensorReader, name: str) -> None:
        super().__init__(checkpoint.info(name).shape, name, origin=checkpoint.path)
        self._checkpoint = checkpoint

    def _read(self, begin: int, end: int) -> np.ndarray:
        return self._checkpoint.read(self.label, begin, end)


def select_rows(source: LogicalSource, ranges: Sequence[tuple[int, int]]) -> LogicalSource:
    """Concatenate half-open row ranges of a source seen as ``[shape[0], rest]``.

    The rows stay encoded if the format of the source can be cut there.

    Args:
        source: At least rank 1.
        ranges: Ranges inside ``[0, shape[0])``, each with at least one row; they may repeat.

    Raises:
        ValueError: The source is a scalar, or a range is empty or not inside it.
    """
    if not source.shape or not ranges:
        raise ValueError(f"{source.label}: rows of {list(source.shape)} cannot be selected")
    for begin, end in ranges:
        if not 0 <= begin < end <= source.shape[0]:
            raise ValueError(
                f"{source.label}: rows [{begin}, {end}) are not inside {source.shape[0]} rows"
            )
    merged = _merge_adjacent(ranges)
    if merged == [(0, source.shape[0])]:
        return source
    return _SelectedRows(source, merged)


def _merge_adjacent(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged = [ranges[0]]
    for begin, end in ranges[1:]:
        if begin == merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


class _SelectedRows(LogicalSource):
    def __init__(self, source: LogicalSource, ranges: list[tuple[int, int]]) -> None:
        rows = sum(end - begin for begin, end in ranges)
        super().__init__((rows, *source.shape[1:]), source.label, source.tensors, source.origin)
        self._source = source
        self._ranges = ranges
        width = prod(source.shape[1:])
        self._spans = [(begin * width, end * width) for begin, end in ranges]
        lengths = [end - begin for begin, end in self._spans]
        self._span_starts = [0, *accumulate(lengths)]

    @property
    def encoded(self) -> EncodedSource | None:
        encoded = self._source.encoded
        return None if encoded is None else select_encoded_rows(encoded, self._ranges)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._source.dtype

    def _read(self, begin: int, end: int) -> np.ndarray:
        if begin == end:
            return self._source.read_values(0, 0)
        pieces: list[np.ndarray] = []
        index = bisect_right(self._span_starts, begin) - 1
        position = begin
        while position < end:
            span_begin, span_end = self._spans[index]
            first = span_begin + position - self._span_starts[index]
            last = min(span_end, first + end - position)
            pieces.append(self._source.read_values(first, last))
            position += last - first
            index += 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def reshape(source: LogicalSource, shape: Sequence[int]) -> LogicalSource:
    """See the elements of a source, in their order, under another shape.

    Raises:
        ValueError: The number of elements differs.
    """
    if tuple(shape) == source.shape:
        return source
    if prod(shape) != source.num_elements:
        raise ValueError(
            f"{source.label}: {list(source.shape)} cannot be reshaped to {list(shape)}"
        )
    return _Reshaped(source, shape)


class _Reshaped(LogicalSource):
    def __init__(self, source: LogicalSource, shape: Sequence[int]) -> None:
        super().__init__(shape, source.label, source.tensors, source.origin)
        self._source = source

    @property
    def encoded(self) -> EncodedSource | None:
        # Words are those of a matrix, so only a reshape to the very matrix keeps them.
        encoded = self._source.encoded
        return encoded if encoded is not None and encoded.shape == self.shape else None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._source.dtype

    def _read(self, begin: int, end: int) -> np.ndarray:
        return self._source.read_values(begin, end)


def transpose(source: LogicalSource, axes: Sequence[int]) -> LogicalSource:
    """Permute the axes of a small tensor; every read holds all of it in memory.

    Raises:
        ConversionError: The tensor has more than `TRANSPOSE_LIMIT_ELEMENTS` elements.
        ValueError: `axes` is not a permutation of the tensor's axes.
    """
    if sorted(axes) != list(range(len(source.shape))):
        raise ValueError(f"{source.label}: {list(axes)} does not permute {list(source.shape)}")
    if source.num_elements > TRANSPOSE_LIMIT_ELEMENTS:
        raise ConversionError(
            f"tensor {source.label!r} has {source.num_elements} elements; axes are permuted in "
            f"memory, which is limited to {TRANSPOSE_LIMIT_ELEMENTS}"
        )
    return _Transposed(source, axes)


class _Transposed(LogicalSource):
    def __init__(self, source: LogicalSource, axes: Sequence[int]) -> None:
        shape = [source.shape[axis] for axis in axes]
        super().__init__(shape, source.label, source.tensors, source.origin)
        self._source = source
        self._axes = tuple(axes)

    def _read(self, begin: int, end: int) -> np.ndarray:
        if begin == end:
            return self._source.read_values(0, 0)
        whole = self._source.read_values(0, self._source.num_elements)
        return whole.reshape(self._source.shape).transpose(self._axes).reshape(-1)[begin:end]
