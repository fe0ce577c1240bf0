"""One logical parameter: reading its elements from the parts that it is bound to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.container.stored_tensor import StoredTensor
from ninfer_format.errors import ArtifactError

Rows = tuple[int, int] | NDArray[np.integer[Any]]
"""Rows [begin, end), or the indices of rows in any order."""

COLUMN_CHUNK_ELEMENTS = 2**20
"""Elements that are decoded at a time where columns cannot be cut out of the objects."""


@dataclass(frozen=True, slots=True)
class BoundPart:
    """Logical elements [begin, end) of a tensor."""

    tensor: StoredTensor
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.end - self.begin


class LogicalParameter:
    """A parameter of a known shape; a row is one index of its first axis.

    Args:
        name: Its name, for messages.
        parts: Where its elements are, one part after the other.
        shape: Its shape.

    Raises:
        ArtifactError: `reference`: the parts have another number of elements than the shape, or
            some are integers and some are reals.
    """

    def __init__(self, name: str, parts: Sequence[BoundPart], shape: tuple[int, ...]) -> None:
        self._name = name
        self._parts = parts
        self._begins = [0, *accumulate(part.elements for part in parts)]
        self.shape = shape
        elements = self._begins[-1]
        if prod(shape) != elements:
            raise self._error(
                f"is bound to {elements} elements, but its shape {list(shape)} has {prod(shape)}"
            )
        if len({part.tensor.dtype for part in parts}) > 1:
            raise self._error("is bound to integers and reals together")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values: float32, or int32 for integer tensors."""
        return self._parts[0].tensor.dtype

    def values(self) -> NDArray[Any]:
        """All values, in the parameter's shape."""
        return self._elements(0, self._begins[-1]).reshape(self.shape)

    def rows(self, rows: Rows) -> NDArray[Any]:
        """Values [n, ...] of some rows; see `Artifact.read_rows`."""
        width = prod(self.shape[1:])
        if isinstance(rows, tuple):
            begin, end = rows
            self._check_interval("rows", begin, end, 0)
            return self._elements(begin * width, end * width).reshape(-1, *self.shape[1:])
        self._check_indices(rows)
        runs = list(_runs(rows))
        for _, first, count in runs:
            self._require(first * width, (first + count) * width)
        out = np.empty((rows.size, *self.shape[1:]), self.dtype)
        for place, first, count in runs:
            out[place : place + count] = self.rows((first, first + count))
        return out

    def columns(self, begin: int, end: int) -> NDArray[Any]:
        """Values [N, end - begin] of some columns; see `Artifact.read_columns`."""
        if len(self.shape) != 2:
            raise self._error(f"of shape {list(self.shape)} has no columns")
        self._check_interval("columns", begin, end, 1)
        height, width = self.shape
        self._require(0, height * width)
        out = np.empty((height, end - begin), self.dtype)
        if all(_has_rows_of(part, width) for part in self._parts):
            for part, first in zip(self._parts, self._begins, strict=False):
                rows = part.begin // width, part.end // width
                place = first // width
                out[place : place + rows[1] - rows[0]] = part.tensor.block(rows, (begin, end))
            return out
        step = max(1, COLUMN_CHUNK_ELEMENTS // width)
        for first in range(0, height, step):
            last = min(height, first + step)
            out[first:last] = self.rows((first, last))[:, begin:end]
        return out

    def _elements(self, begin: int, end: int) -> NDArray[Any]:
        """Values of elements [begin, end), flat; a single part is not copied."""
        pieces = list(self._pieces(begin, end))
        if len(pieces) == 1:
            (piece,) = pieces
            return piece.tensor.elements(piece.begin, piece.end)
        self._require(begin, end)
        out = np.empty(end - begin, self.dtype)
        place = 0
        for piece in pieces:
            out[place : place + piece.elements] = piece.tensor.elements(piece.begin, piece.end)
            place += piece.elements
        return out

    def _require(self, begin: int, end: int) -> None:
        """Open the files of elements [begin, end): until then their number is only a claim."""
        for piece in self._pieces(begin, end):
            piece.tensor.require(piece.begin, piece.end)

    def _pieces(self, begin: int, end: int) -> Iterator[BoundPart]:
        """The parts of the parts that elements [begin, end) are."""
        index = bisect_right(self._begins, begin) - 1
        while begin < end:
            part, first = self._parts[index], self._begins[index]
            stop = min(end, first + part.elements)
            shift = part.begin - first
            yield BoundPart(part.tensor, begin + shift, stop + shift)
            begin = stop
            index += 1

    def _check_interval(self, what: str, begin: int, end: int, axis: int) -> None:
        length = self.shape[axis] if self.shape else 0
        if not 0 <= begin <= end <= length:
            raise ArtifactError(
                "range",
                f"{what} of parameter {self._name!r} are outside it",
                expected=f"0 <= begin <= end <= {length}",
                found=f"[{begin}, {end})",
            )

    def _check_indices(self, rows: NDArray[np.integer[Any]]) -> None:
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise TypeError(f"rows must be integers [n], found {rows.dtype} {list(rows.shape)}")
        if rows.size:
            self._check_interval("rows", int(rows.min()), int(rows.max()) + 1, 0)

    def _error(self, message: str) -> ArtifactError:
        return ArtifactError("reference", f"parameter {self._name!r} {message}")


def _has_rows_of(part: BoundPart, width: int) -> bool:
    """Whether a part is some complete rows of a matrix with rows of `width`."""
    shape = part.tensor.record.shape
    if len(shape) != 2 or shape[1] != width:
        return False
    return part.begin % width == 0 and part.end % width == 0


def _runs(rows: NDArray[np.integer[Any]]) -> Iterator[tuple[int, int, int]]:
    """Runs of consecutive rows as (place in `rows`, first row, number of rows)."""
    edges = np.flatnonzero(np.diff(rows.astype(np.int64)) != 1) + 1
    bounds = [0, *edges.tolist(), rows.size] if rows.size else [0]
    for begin, end in pairwise(bounds):
        yield begin, int(rows[begin]), end - begin
