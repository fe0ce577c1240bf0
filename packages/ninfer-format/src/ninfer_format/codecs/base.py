"""What every storage codec does: move the words of one tensor into and out of its object's bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.checks import check_encodable, check_range
from ninfer_format.codecs.geometry import (
    ByteArray,
    Piece,
    Plane,
    PlaneSize,
    Shape,
    Span,
    place_planes,
)
from ninfer_format.dtypes import NumericFormat
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import StorageLayout

Words = TypeVar("Words")


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Some rows of a tensor as a tensor of their own.

    Its payload is zeros with the spans copied from the object; nothing is re-packed.

    Attributes:
        codec: Codec of the rows.
        spans: What to copy, in byte order.
    """

    codec: Codec[Any]
    spans: tuple[Span, ...]


class Codec(ABC, Generic[Words]):
    """The words of one tensor, of one numeric format in one storage layout.

    A codec converts between three things. *Words* are what the format defines, in the logical
    shape and without padding. The *payload* is the bytes of the object. *Values* are what the
    words mean: float32, or int32 for integer tensors.

    A subclass states the class variables and implements the methods that end in an ellipsis.

    Args:
        shape: Logical shape.
        divisors: Number of equal matrices that are stacked along the rows.
        bitrate_half_bits: Rate of a trellis code in half bits per weight, None for other formats.

    Attributes:
        numeric: The numeric format.
        storage: The storage layout.
        judges_words: Whether decoding refuses illegal words (formats specification).
        format: Name of the numeric format.
        layout: Name of the storage layout.
        geometry: Where the planes lie.
        first_row: What messages count rows from: the first row of a slice in its object.

    Raises:
        ArtifactError: `encoding`: the layout cannot store such a tensor.
    """

    numeric: ClassVar[NumericFormat]
    storage: ClassVar[StorageLayout]
    judges_words: ClassVar[bool] = False

    def __init__(
        self, shape: Shape, *, divisors: int = 1, bitrate_half_bits: int | None = None
    ) -> None:
        check_encodable(self.storage, shape, divisors, bitrate_half_bits)
        self.format = self.numeric.name
        self.layout = self.storage.name
        self.shape = shape
        self.divisors = divisors
        self.bitrate_half_bits = bitrate_half_bits
        self.geometry = place_planes(self._plane_sizes(), self.rows, divisors)
        self.first_row = 0

    # --- rows ------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Length of the first axis N; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    @property
    def row_block(self) -> int | None:
        """What the edges of a slice of rows are multiples of; None for a scalar, which has none."""
        return self.storage.row_block if self.shape else None

    def row_slice(self, begin: int, end: int) -> RowSlice:
        """Find the bytes of rows [begin, end), which lie inside one matrix of a stack.

        Raises:
            ArtifactError: `codec`: the rows are empty, outside the tensor, not whole blocks of
                `row_block` rows, or in several matrices.
        """
        if not self.shape:
            raise ArtifactError("codec", "a scalar has no rows")
        self._check_rows(begin, end)
        codec = self._resized(end - begin)
        codec.first_row = self.first_row + begin
        spans = (
            Span(self._place(plane, begin), target.offset, target.num_bytes)
            for plane, target in self._plane_pairs(codec)
        )
        return RowSlice(codec, tuple(span for span in spans if span.length))

    def slice_rows(self, payload: ByteArray, begin: int, end: int) -> ByteArray:
        """The payload of rows [begin, end) as a tensor of their own; see `row_slice`."""
        self._check_payload(payload)
        rows = self.row_slice(begin, end)
        out = np.zeros(rows.codec.geometry.num_bytes, dtype=np.uint8)
        for span in rows.spans:
            data = payload[span.source : span.source + span.length]
            out[span.target : span.target + span.length] = data
        return out

    def gather_rows(self, payload: ByteArray, rows: Sequence[int] | NDArray[Any]) -> ByteArray:
        """The payload of chosen rows, in any order and with repeats, as a tensor of their own.

        Raises:
            ArtifactError: `codec`: no rows, a row outside the tensor, or a layout that stores rows
                in blocks.
        """
        self._check_payload(payload)
        if self.row_block != 1:
            raise ArtifactError("codec", f"single rows of this {self.layout} cannot be gathered")
        index = np.asarray(rows)
        if index.ndim != 1 or index.dtype.kind not in "iu" or not index.size:
            raise ArtifactError("codec", "rows to gather must be a list of one integer or more")
        if index.min() < 0 or index.max() >= self.rows:
            raise ArtifactError(
                "codec",
                "row to gather is outside the tensor",
                expected=f"0 to {self.rows - 1}",
                found=f"{index.min()} to {index.max()}",
            )
        codec = self._resized(index.size)
        out = np.zeros(codec.geometry.num_bytes, dtype=np.uint8)
        for plane, target in self._plane_pairs(codec):
            entries = payload[plane.offset : plane.end].reshape(self.rows, -1)
            out[target.offset : target.end] = entries[index].reshape(-1)
        return out

    # --- encoding --------------------------------------------------------------------------

    def encode(self, words: Words) -> ByteArray:
        """Encode the whole tensor; padding is zero.

        Raises:
            ArtifactError: `codec`: an illegal word.
        """
        self.validate(words)
        return self._assemble(words)

    def encode_rows(self, words: Words, first_row: int) -> list[Piece]:
        """Encode consecutive rows.

        Args:
            words: Words of the rows, as of a tensor of their own.
            first_row: Index of the first of the rows.

        Raises:
            ArtifactError: `codec`: an illegal word, or rows that `row_slice` would refuse.
        """
        count = self._count_rows(words)
        self._check_rows(first_row, first_row + count)
        codec = self._resized(count)
        codec._check_words(words, self.first_row + first_row)
        planes = self.geometry.planes
        return [
            Piece(self._place(planes[name], first_row), data, planes[name].shared)
            for name, data in codec._pack(words).items()
        ]

    # --- decoding --------------------------------------------------------------------------

    def decode_words(self, payload: ByteArray) -> Words:
        """Read all words; arrays of them may be views of the payload.

        Raises:
            ArtifactError: `codec`: the payload has another length than the geometry asks for, or,
                if the codec judges words, one is illegal.
        """
        self._check_payload(payload)
        words = self._unpack(payload)
        if self.judges_words:
            self._check_words(words, self.first_row)
        return words

    def decode(self, payload: ByteArray) -> NDArray[Any]:
        """Decode all values, in the logical shape; see `decode_range`."""
        return self.decode_range(payload, 0, prod(self.shape)).reshape(self.shape)

    def decode_range(self, payload: ByteArray, begin: int, end: int) -> NDArray[Any]:
        """Decode the values of logical elements [begin, end), flat in C order.

        Only the rows touched are read.

        Raises:
            ArtifactError: `codec`: wrong payload length, a range outside the tensor, or, if the
                codec judges words, an illegal word among those read.
        """
        self._check_payload(payload)
        check_range(begin, end, prod(self.shape), "element")
        return self._decode_range(payload, begin, end)

    def decode_block(
        self, payload: ByteArray, rows: tuple[int, int], columns: tuple[int, int]
    ) -> NDArray[Any]:
        """Decode the values of some rows and columns [begin, end) of a matrix [N, K].

        Only the groups of columns touched are read.

        Returns:
            Values [rows, columns].

        Raises:
            ArtifactError: `codec`: not a matrix, a range outside it, or as `decode_range`.
        """
        self._check_payload(payload)
        if len(self.shape) != 2:
            raise ArtifactError("codec", "not a matrix", expected="rank 2", found=list(self.shape))
        check_range(*rows, self.shape[0], "row")
        check_range(*columns, self.shape[1], "column")
        return self._decode_block(payload, rows, columns)

    # --- checking --------------------------------------------------------------------------

    def validate(self, words: Words) -> None:
        """Check that every word of the tensor belongs to the format.

        Raises:
            ArtifactError: `codec`: wrong shapes or types, or an illegal word; the message says
                which and where.
        """
        self._check_words(words, self.first_row)

    def verify(self, payload: ByteArray) -> None:
        """Check an object completely: every word is legal and all padding is zero.

        Loading does not do this; decoding accepts what it can.

        Raises:
            ArtifactError: `codec`, with the first violation.
        """
        self._check_payload(payload)
        words = self._unpack(payload)
        self.validate(words)
        different = np.flatnonzero(self._assemble(words) != payload)
        if different.size:
            offset = int(different[0])
            raise ArtifactError(
                "codec", "padding is not zero", offset=offset, expected=0, found=payload[offset]
            )

    @property
    def padding(self) -> list[tuple[int, int]]:
        """Gaps between the planes as (offset, length); a writer fills them with zeros."""
        gaps = []
        end = 0
        for plane in self.geometry.planes.values():
            if plane.offset > end:
                gaps.append((end, plane.offset - end))
            end = plane.end
        return gaps

    # --- what a layout and a format define ---------------------------------------------------

    @abstractmethod
    def _plane_sizes(self) -> Mapping[str, PlaneSize]:
        """Sizes of the planes by name, in byte order."""
        ...

    @abstractmethod
    def _count_rows(self, words: Words) -> int:
        """Number of rows that `words` are about; words of a wrong shape may give any number."""
        ...

    @abstractmethod
    def _check_words(self, words: Words, first_row: int) -> None:
        """Check words of the whole tensor, whose rows count from `first_row` in messages."""
        ...

    @abstractmethod
    def _pack(self, words: Words) -> Mapping[str, ByteArray]:
        """The bytes of each plane that is not empty; the words are legal."""
        ...

    @abstractmethod
    def _unpack(self, payload: ByteArray) -> Words:
        """Read all words without judging them; the payload has the right length."""
        ...

    @abstractmethod
    def _decode_range(self, payload: ByteArray, begin: int, end: int) -> NDArray[Any]:
        """Decode a range inside the tensor."""
        ...

    @abstractmethod
    def _decode_block(
        self, payload: ByteArray, rows: tuple[int, int], columns: tuple[int, int]
    ) -> NDArray[Any]:
        """Decode a block inside the matrix."""
        ...

    # --- planes ----------------------------------------------------------------------------

    @property
    def _matrix_rows(self) -> int:
        """Rows of each matrix of the stack."""
        return self.rows // self.divisors

    def _assemble(self, words: Words) -> ByteArray:
        """The payload of legal words."""
        payload = np.zeros(self.geometry.num_bytes, dtype=np.uint8)
        for name, data in self._pack(words).items():
            plane = self.geometry.planes[name]
            payload[plane.offset : plane.end] = data
        return payload

    def _place(self, plane: Plane, row: int) -> int:
        """Offset of the entry of a row in a plane."""
        if plane.shared:
            matrix = row // self._matrix_rows
            return plane.offset + matrix * (plane.num_bytes // self.divisors)
        return plane.offset + row * (plane.num_bytes // self.rows)

    def _plane_rows(self, payload: ByteArray, name: str, begin: int, end: int) -> ByteArray:
        """View the bytes of rows [begin, end) in a plane: uint8 [rows, bytes of a row]."""
        plane = self.geometry.planes[name]
        first, last = self._place(plane, begin), self._place(plane, end)
        return payload[first:last].reshape(end - begin, -1)

    def _plane_pairs(self, other: Codec[Any]) -> zip[tuple[Plane, Plane]]:
        return zip(self.geometry.planes.values(), other.geometry.planes.values(), strict=True)

    def _resized(self, rows: int) -> Codec[Words]:
        """Codec of some rows of one matrix as a tensor of their own."""
        shape = (rows, *self.shape[1:]) if self.shape else ()
        return type(self)(shape, bitrate_half_bits=self.bitrate_half_bits)

    def _check_rows(self, begin: int, end: int) -> None:
        block = self.storage.row_block
        matrix_rows = self._matrix_rows
        if not 0 <= begin < end <= self.rows:
            raise ArtifactError(
                "codec",
                "rows are outside the tensor",
                expected=f"one row or more within [0, {self.rows})",
                found=f"[{begin}, {end})",
            )
        if begin % block or end % block or begin // matrix_rows != (end - 1) // matrix_rows:
            raise ArtifactError(
                "codec",
                f"{self.layout} cannot cut these rows",
                expected=f"multiples of {block} inside one matrix of {matrix_rows} rows",
                found=f"[{begin}, {end})",
            )

    def _check_payload(self, payload: ByteArray) -> None:
        if payload.shape != (self.geometry.num_bytes,):
            raise ArtifactError(
                "codec",
                f"payload of a {self.format} tensor {list(self.shape)} has the wrong length",
                expected=f"{self.geometry.num_bytes} bytes",
                found=payload.size,
            )
