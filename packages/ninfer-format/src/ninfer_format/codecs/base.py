"""What every storage codec does: move the words of one tensor into and out of its object's bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ninfer_format.container.framing import U64_MAX
from ninfer_format.container.schema import MAX_RANK
from ninfer_format.errors import ArtifactError

Words = TypeVar("Words")
Shape = tuple[int, ...]
ByteArray = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Plane:
    """A run of bytes of one kind inside an object.

    Attributes:
        offset: First byte, counted from the object's start.
        num_bytes: Length; 0 where a format does not need the plane.
    """

    offset: int
    num_bytes: int

    @property
    def end(self) -> int:
        """First byte after the plane."""
        return self.offset + self.num_bytes


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where everything lies in an object: planes by name, in byte order, and the total size."""

    planes: Mapping[str, Plane]
    num_bytes: int


class Codec(ABC, Generic[Words]):
    """Words of one numeric format in one storage layout.

    A codec converts between three things. *Words* are what the format defines, in the logical
    shape and without padding. The *payload* is the bytes of the object. *Values* are what the
    words mean: float32, or int32 for integer tensors.

    Attributes:
        format: Name of the numeric format.
        layout: Name of the storage layout.
    """

    format: str
    layout: str

    @abstractmethod
    def geometry(
        self, shape: Shape, *, divisors: int = 1, bitrate_half_bits: int | None = None
    ) -> Geometry:
        """Compute where the planes of a tensor of `shape` lie.

        Raises:
            ArtifactError: `encoding`: the layout cannot store such a tensor.
        """

    @abstractmethod
    def encode_rows(
        self, words: Words, shape: Shape, first_row: int
    ) -> list[tuple[int, ByteArray]]:
        """Encode consecutive rows of a tensor.

        Args:
            words: Words of the rows: the whole tensor's words, cut along the first axis.
            shape: Logical shape of the whole tensor.
            first_row: Index of the first of the rows.

        Returns:
            Pieces of the object as (offset from the object's start, bytes).

        Raises:
            ArtifactError: `codec`: an illegal word, or rows outside the tensor.
        """

    @abstractmethod
    def decode_words(self, payload: ByteArray, shape: Shape) -> Words:
        """Read all words without judging them.

        Args:
            payload: The object's bytes.
            shape: Logical shape.

        Raises:
            ArtifactError: `codec`: the payload has another length than the geometry asks for.
        """

    @abstractmethod
    def decode_range(self, payload: ByteArray, shape: Shape, begin: int, end: int) -> NDArray[Any]:
        """Decode the values of logical elements [begin, end), flat in C order.

        Only the rows touched are read.

        Raises:
            ArtifactError: `codec`: wrong payload length, or a range outside the tensor.
        """

    @abstractmethod
    def validate(self, words: Words, shape: Shape) -> None:
        """Check that every word belongs to the format.

        Raises:
            ArtifactError: `codec`: wrong shapes or types, or an illegal word; the message says
                which and where.
        """

    def decode(self, payload: ByteArray, shape: Shape) -> NDArray[Any]:
        """Decode all values, in the logical shape; see `decode_range`."""
        return self.decode_range(payload, shape, 0, prod(shape)).reshape(shape)

    def encode(self, words: Words, shape: Shape) -> ByteArray:
        """Encode a whole tensor; padding is zero.

        Raises:
            ArtifactError: `codec`: an illegal word; `encoding`: an illegal shape.
        """
        payload = np.zeros(self.geometry(shape).num_bytes, dtype=np.uint8)
        for offset, data in self.encode_rows(words, shape, 0):
            payload[offset : offset + data.size] = data
        return payload

    def padding(self, shape: Shape) -> list[tuple[int, int]]:
        """Gaps between the planes as (offset, length); a writer fills them with zeros."""
        gaps = []
        end = 0
        for plane in self.geometry(shape).planes.values():
            if plane.offset > end:
                gaps.append((end, plane.offset - end))
            end = plane.end
        return gaps

    def verify(self, payload: ByteArray, shape: Shape) -> None:
        """Check an object completely: every word is legal and all padding is zero.

        Loading does not do this; decoding accepts what it can.

        Raises:
            ArtifactError: `codec`, with the first violation.
        """
        words = self.decode_words(payload, shape)
        self.validate(words, shape)
        different = np.flatnonzero(self.encode(words, shape) != payload)
        if different.size:
            offset = int(different[0])
            raise ArtifactError(
                "codec", "padding is not zero", offset=offset, expected=0, found=payload[offset]
            )

    def _check_payload(self, payload: ByteArray, shape: Shape) -> Geometry:
        geometry = self.geometry(shape)
        if payload.shape != (geometry.num_bytes,):
            raise ArtifactError(
                "codec",
                f"payload of a {self.format} tensor {list(shape)} has the wrong length",
                expected=f"{geometry.num_bytes} bytes",
                found=payload.size,
            )
        return geometry


def check_shape(shape: Shape, rank: int | None = None) -> None:
    """Check a logical shape.

    Args:
        shape: The shape.
        rank: The rank that the layout needs, None for any.

    Raises:
        ArtifactError: `encoding`: wrong rank, a dimension that is not a positive integer, or more
            elements than 64 bit can count.
    """
    if len(shape) > MAX_RANK or (rank is not None and len(shape) != rank):
        wanted = f"rank {rank}" if rank is not None else f"rank 0 to {MAX_RANK}"
        raise ArtifactError(
            "encoding", "shape has the wrong rank", expected=wanted, found=f"rank {len(shape)}"
        )
    if any(type(dimension) is not int or dimension < 1 for dimension in shape):
        raise ArtifactError(
            "encoding", "shape is wrong", expected="positive integers", found=list(shape)
        )
    if prod(shape) > U64_MAX:
        raise ArtifactError("encoding", "shape has more than 2^64-1 elements", found=list(shape))


def check_size(num_bytes: int) -> int:
    """Check that an encoded size is a 64-bit number, and return it."""
    if num_bytes > U64_MAX:
        raise ArtifactError(
            "encoding", "encoded size is too large", expected="at most 2^64-1", found=num_bytes
        )
    return num_bytes


def refuse_variants(layout: str, divisors: int, bitrate_half_bits: int | None) -> None:
    """Refuse the members of a tensor record that this layout does not have.

    Raises:
        ArtifactError: `encoding`.
    """
    if divisors != 1:
        raise ArtifactError(
            "encoding", f"{layout} has no divisors", expected="divisors 1", found=divisors
        )
    if bitrate_half_bits is not None:
        raise ArtifactError(
            "encoding",
            f"{layout} has no bit rate",
            expected="no bitrate_half_bits",
            found=bitrate_half_bits,
        )


def check_range(shape: Shape, begin: int, end: int) -> None:
    """Check that [begin, end) are logical elements of a tensor of `shape`.

    Raises:
        ArtifactError: `codec`.
    """
    if not 0 <= begin <= end <= prod(shape):
        raise ArtifactError(
            "codec",
            "element range is outside the tensor",
            expected=f"0 <= begin <= end <= {prod(shape)}",
            found=f"[{begin}, {end})",
        )
