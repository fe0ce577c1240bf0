"""Where the words of a tensor lie in the bytes of its object: planes, and pieces of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.checks import check_size
from ninfer_format.layouts import PLANE_ALIGNMENT, align_up

Shape = tuple[int, ...]
ByteArray = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Plane:
    """A run of bytes of one kind inside an object.

    Attributes:
        offset: First byte, counted from the object's start.
        num_bytes: Length; 0 where a format does not need the plane.
        shared: Whether the plane holds one entry for each matrix of a stack. Other planes hold one
            for each row.
    """

    offset: int
    num_bytes: int
    shared: bool = False

    @property
    def end(self) -> int:
        """First byte after the plane."""
        return self.offset + self.num_bytes


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where everything lies in an object: planes by name, in byte order, and the total size."""

    planes: Mapping[str, Plane]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PlaneSize:
    """What a layout says about a plane before it has a place.

    Attributes:
        entry_bytes: Bytes of one row, or of one matrix of the stack if the plane is shared.
        shared: See `Plane`.
    """

    entry_bytes: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """Encoded bytes and their place in the object.

    Attributes:
        offset: First byte, counted from the object's start.
        data: The bytes.
        shared: Whether other rows of the object have the very same piece. It is written once, and
            the others must agree with it.
    """

    offset: int
    data: ByteArray
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of an object that are also part of a slice of its rows.

    Attributes:
        source: First byte in the object.
        target: First byte in the payload of the slice.
        length: Number of bytes.
    """

    source: int
    target: int
    length: int


def place_planes(sizes: Mapping[str, PlaneSize], rows: int, divisors: int) -> Geometry:
    """Place planes one after the other, each at the alignment of planes.

    Args:
        sizes: Their sizes, in byte order.
        rows: Rows of the tensor.
        divisors: Matrices in the stack.

    Raises:
        ArtifactError: `encoding`: the object is larger than 64 bit can count.
    """
    planes: dict[str, Plane] = {}
    end = 0
    for name, size in sizes.items():
        num_bytes = (divisors if size.shared else rows) * size.entry_bytes
        planes[name] = Plane(align_up(end, PLANE_ALIGNMENT), num_bytes, size.shared)
        end = planes[name].end
    return Geometry(planes, check_size(end))


def word_bytes(words: NDArray[Any], stored: str) -> ByteArray:
    """The bytes of words in C order, as a layout stores them.

    Args:
        words: Integers of any shape and order.
        stored: NumPy name of the type that is stored, such as ``<u2``.
    """
    return np.ascontiguousarray(words, dtype=stored).reshape(-1).view(np.uint8)
