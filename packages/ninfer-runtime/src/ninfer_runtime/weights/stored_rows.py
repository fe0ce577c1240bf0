"""Rows of matrices as they are stored: where their words lie in the payload of an artifact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format import ArtifactError, Codec, codec_for, codec_of, get_layout
from ninfer_runtime.ops.linear.packing import TURN, row_factors, rows_in_turns
from ninfer_runtime.ops.linear.weight_records import ROWS

if TYPE_CHECKING:
    from ninfer_format import Artifact, TensorRecord

PLANE_BYTES = 3 * 256
"""The most that the alignment of planes adds to a matrix."""


@dataclass(frozen=True, slots=True)
class Run:
    """Logical elements [begin, end) of a stored tensor."""

    record: TensorRecord
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of a payload and where they go.

    Attributes:
        source: First byte in the payload.
        target: First byte in the buffer that is filled.
        length: Number of bytes.
    """

    source: int
    target: int
    length: int


def runs_of(artifact: Artifact, name: str) -> list[Run]:
    """What a parameter is bound to; parts that follow each other in one object are one run."""
    runs: list[Run] = []
    for part in artifact.parts(name):
        artifact.codec(part.object)  # refuses a record that is no tensor or cannot be interpreted
        record: Any = artifact.record(part.object)
        append_run(runs, Run(record, part.begin, part.end))
    return runs


def append_run(runs: list[Run], run: Run) -> None:
    """Add a run behind others, as part of the last one if it continues that."""
    last = runs[-1] if runs else None
    if last is not None and last.record.id == run.record.id and last.end == run.begin:
        runs[-1] = Run(run.record, last.begin, run.end)
    else:
        runs.append(run)


@dataclass(frozen=True)
class StoredRows:
    """A matrix [N, K] of one format and layout, put together from runs.

    The rows of all layouts follow one another in each plane, so that rows of several objects, one
    after the other, are those of one matrix. Rows that a layout stores in blocks are cut and put
    together in whole blocks.

    Attributes:
        runs: Where the elements lie, in order.
        columns: K.
        in_turns: In records the halves take turns (`rows_in_turns`); see `can_take_turns`.

    Raises:
        ArtifactError: `reference`: a run is not whole rows, or not whole blocks of them.
    """

    runs: tuple[Run, ...]
    columns: int
    in_turns: bool = False

    def __post_init__(self) -> None:
        for run in self.runs:
            self._check(run)
        if self._ends[-1] % self.columns:
            raise self._refused(self.runs[-1], f"whole rows of {self.columns} elements")

    @property
    def format(self) -> str:
        """Numeric format."""
        return self.runs[0].record.format

    @property
    def layout(self) -> str:
        """Storage layout."""
        return self.runs[0].record.layout

    @property
    def shape(self) -> tuple[int, int]:
        """N and K."""
        return self._ends[-1] // self.columns, self.columns

    def codec(self, rows: int) -> Codec[Any]:
        """The codec of so many of the rows as a tensor of their own."""
        return codec_for(self.format, self.layout, (rows, self.columns))

    @property
    def can_take_turns(self) -> bool:
        """Whether the halves can be cut apart, and into what takes turns."""
        return self.shape[0] % (2 * max(TURN, self._layout_block)) == 0

    def slices(self, num_bytes: int) -> Iterator[tuple[int, int]]:
        """Cut the rows where records can be cut, into slices that are stored in `num_bytes`.

        Yields:
            First row and the row after the last one, in the order of the records. A slice has
            `block` rows at least.
        """
        rows, block = self.shape[0], self.block
        row_bytes = self.codec(block).geometry.num_bytes // block + 1
        step = max(block, (num_bytes - PLANE_BYTES) // row_bytes // block * block)
        for begin in range(0, rows, step):
            yield begin, min(rows, begin + step)

    @property
    def block(self) -> int:
        """Rows that cannot be cut: those of a record, or those that the layout stores together."""
        return max(ROWS, self._layout_block * (2 if self.in_turns else 1))

    def extents(self, begin: int, end: int) -> list[Extent]:
        """Where the bytes of rows [begin, end) lie, and their places in a payload of their own.

        Of halves that take turns it is the rows of the first, then those of the second. Planes that
        hold one entry for a whole matrix are left out.
        """
        target = self.codec(end - begin)
        if not self.in_turns:
            return self._extents(begin, end, target, 0)
        half, count = self.shape[0] // 2, (end - begin) // 2
        own = self._extents(begin // 2, end // 2, target, 0)
        return own + self._extents(half + begin // 2, half + end // 2, target, count)

    def _extents(self, begin: int, end: int, target: Codec[Any], place: int) -> list[Extent]:
        """Extents of stored rows [begin, end), which are those from `place` on of `target`."""
        first, last = begin * self.columns, end * self.columns
        behind = place * self.columns - first
        found: list[Extent] = []
        for run, run_end in zip(self.runs, self._ends, strict=True):
            run_begin = run_end - run.elements
            low, high = max(first, run_begin), min(last, run_end)
            if low < high:
                shift = run.begin - run_begin
                found += _plane_extents(run.record, low + shift, high + shift, target, low + behind)
        return found

    def row_scale(self, artifact: Artifact) -> NDArray[np.float32] | None:
        """Factors of the rows in the order of the records, None if the format has none beside these.

        Raises:
            ArtifactError: `codec`: a factor is no positive number.
        """
        parts = [_row_factors(artifact, run) for run in self.runs]
        known = [part for part in parts if part is not None]
        if not known:
            return None
        factors = np.concatenate(known)
        return factors[rows_in_turns(len(factors))] if self.in_turns else factors

    @property
    def _layout_block(self) -> int:
        """Rows that the layout stores together."""
        return get_layout(self.layout).row_block

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(run.elements for run in self.runs))

    def _check(self, run: Run) -> None:
        layout = get_layout(run.record.layout)
        if layout.rank is None:  # elements lie one after the other, whatever the shape
            return
        parts = run.begin % self.columns or run.end % self.columns
        if run.record.shape[1:] != (self.columns,) or parts:
            raise self._refused(run, f"whole rows of {self.columns} elements")
        block = layout.row_block * self.columns
        if run.begin % block or run.end % block:
            raise self._refused(run, f"multiples of {layout.row_block} rows, as {layout.name} has")

    @staticmethod
    def _refused(run: Run, expected: str) -> ArtifactError:
        return ArtifactError(
            "reference",
            f"a matrix is bound to a part of {run.record.id!r} that cannot be cut out",
            expected=expected,
            found=f"elements [{run.begin}, {run.end}) of shape {list(run.record.shape)}",
            hint="convert the checkpoint again",
        )


def extents_of_words(runs: Sequence[Run]) -> list[Extent]:
    """Where the words of runs of a direct format lie, one run after the other."""
    extents, target = [], 0
    for run in runs:
        word = run.record.num_bytes // run.record.elements
        length = run.elements * word
        extents.append(Extent(run.record.offset + run.begin * word, target, length))
        target += length
    return extents


def stacked_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of arrays one below the other; that of a single one is its own."""
    if len(shapes) == 1:
        return shapes[0]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def stack_rows(runs: Sequence[Run], columns: int) -> list[StoredRows]:
    """Put runs together to as few matrices of `columns` columns as their formats allow."""
    stacks: list[list[Run]] = []
    for run in runs:
        if not stacks or _encoding(stacks[-1][0]) != _encoding(run):
            stacks.append([])
        append_run(stacks[-1], run)
    return [StoredRows(tuple(stack), columns) for stack in stacks]


def _encoding(run: Run) -> tuple[str, str]:
    return run.record.format, run.record.layout


def _plane_extents(
    record: TensorRecord, begin: int, end: int, target: Codec[Any], place: int
) -> Iterator[Extent]:
    """Extents of elements [begin, end) of an object, which are those from `place` on of `target`."""
    elements, target_elements = prod(record.shape), prod(target.shape)
    planes = codec_of(record).geometry.planes
    for name, plane in planes.items():
        if plane.shared or not plane.num_bytes:
            continue
        there = target.geometry.planes[name]
        first = begin * plane.num_bytes // elements
        last = end * plane.num_bytes // elements
        offset = there.offset + place * there.num_bytes // target_elements
        yield Extent(record.offset + plane.offset + first, offset, last - first)


def _row_factors(artifact: Artifact, run: Run) -> NDArray[np.float32] | None:
    codec = artifact.codec(run.record.id)

    def plane(name: str) -> NDArray[np.uint8]:
        found = codec.geometry.planes[name]
        data = artifact.read_range(run.record.offset + found.offset, found.num_bytes)
        return np.frombuffer(data, np.uint8)

    factors = row_factors(codec, plane)
    if factors is None:
        return None
    columns = run.record.shape[1]
    own = factors[run.begin // columns : run.end // columns]
    legal = own > 0 if codec.format == "nvfp4" else own >= 0
    if not (np.isfinite(own) & legal).all():
        raise ArtifactError(
            "codec",
            f"{run.record.id!r} has a scale of rows that its format does not allow",
            path=artifact.path,
            hint="the file is damaged; copy it again",
        )
    return own
