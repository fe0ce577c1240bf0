"""`contiguous_le_v1`: one little-endian word after the other in C order, without padding."""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs.base import (
    ByteArray,
    Codec,
    Geometry,
    Plane,
    Shape,
    check_range,
    check_shape,
    check_size,
    refuse_variants,
)
from ninfer_format.dtypes import DirectFormat
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import CONTIGUOUS_LE_V1


class ContiguousCodec(Codec[NDArray[Any]]):
    """A direct format in `contiguous_le_v1`; words are integers in the logical shape.

    Args:
        direct: The numeric format.
    """

    layout = CONTIGUOUS_LE_V1.name

    def __init__(self, direct: DirectFormat) -> None:
        self.format = direct.name
        self.word = direct.word

    @abstractmethod
    def values(self, words: NDArray[Any]) -> NDArray[Any]:
        """What `words` mean, in the same shape: float32 or int32."""

    def geometry(
        self, shape: Shape, *, divisors: int = 1, bitrate_half_bits: int | None = None
    ) -> Geometry:
        """One plane, ``words``."""
        refuse_variants(self.layout, divisors, bitrate_half_bits)
        check_shape(shape)
        num_bytes = check_size(prod(shape) * self.word.itemsize)
        return Geometry({"words": Plane(0, num_bytes)}, num_bytes)

    def encode_rows(
        self, words: NDArray[Any], shape: Shape, first_row: int
    ) -> list[tuple[int, ByteArray]]:
        """Encode rows along the first axis; a scalar is one row."""
        row = prod(shape[1:])
        rows = shape[0] if shape else 1
        count = words.shape[0] if words.ndim else 1
        if not 0 <= first_row <= first_row + count <= rows:
            raise ArtifactError(
                "codec",
                "rows are outside the tensor",
                expected=f"rows within [0, {rows})",
                found=f"[{first_row}, {first_row + count})",
            )
        self.validate(words, (count, *shape[1:]) if shape else ())
        data = np.ascontiguousarray(words, dtype=self.word).reshape(-1).view(np.uint8)
        return [(first_row * row * self.word.itemsize, data)]

    def decode_words(self, payload: ByteArray, shape: Shape) -> NDArray[Any]:
        """View the payload as words; nothing is copied."""
        self._check_payload(payload, shape)
        return payload.view(self.word).reshape(shape)

    def decode_range(self, payload: ByteArray, shape: Shape, begin: int, end: int) -> NDArray[Any]:
        """Decode elements [begin, end); formats that need no arithmetic return a view."""
        self._check_payload(payload, shape)
        check_range(shape, begin, end)
        size = self.word.itemsize
        words = payload[begin * size : end * size].view(self.word)
        # An object may start at any byte of a file whose segments are odd.
        return self.values(np.require(words, requirements="A"))

    def validate(self, words: NDArray[Any], shape: Shape) -> None:
        """Check shape and type; every word is legal."""
        if words.shape != shape or words.dtype != self.word:
            raise ArtifactError(
                "codec",
                f"words do not fit a {self.format} tensor",
                expected=f"{self.word.name} {list(shape)}",
                found=f"{words.dtype.name} {list(words.shape)}",
            )
