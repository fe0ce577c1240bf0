"""Checks that several codecs share: what a layout can store, ranges, and illegal words."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.container.framing import U64_MAX
from ninfer_format.container.schema import MAX_RANK
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import StorageLayout


def check_encodable(
    layout: StorageLayout, shape: tuple[int, ...], divisors: int, bitrate_half_bits: int | None
) -> None:
    """Check that a layout can store a tensor (container specification, section 5).

    Raises:
        ArtifactError: `encoding`: divisors or a bit rate that the layout does not have, or a shape
            that it cannot store.
    """
    if divisors != 1 and not layout.has_divisors:
        raise ArtifactError(
            "encoding", f"{layout.name} has no divisors", expected="divisors 1", found=divisors
        )
    _check_bitrate(layout, bitrate_half_bits)
    _check_shape(layout, shape)
    if divisors != 1 and (divisors < 1 or shape[0] % (divisors * layout.row_block)):
        raise ArtifactError(
            "encoding",
            f"{divisors} divisors do not share out {shape[0]} rows",
            expected=f"the same multiple of {layout.row_block} rows for each",
            found=f"{shape[0]} / {divisors}",
        )


def _check_bitrate(layout: StorageLayout, bitrate_half_bits: int | None) -> None:
    if not layout.bitrates:
        if bitrate_half_bits is not None:
            raise ArtifactError(
                "encoding",
                f"{layout.name} has no bit rate",
                expected="no bitrate_half_bits",
                found=bitrate_half_bits,
            )
    elif bitrate_half_bits not in layout.bitrates:
        raise ArtifactError(
            "encoding",
            f"{layout.name} needs a bit rate",
            expected=f"bitrate_half_bits {layout.bitrates[0]} to {layout.bitrates[-1]}",
            found=bitrate_half_bits,
        )


def _check_shape(layout: StorageLayout, shape: tuple[int, ...]) -> None:
    if len(shape) > MAX_RANK or (layout.rank is not None and len(shape) != layout.rank):
        wanted = f"rank {layout.rank}" if layout.rank is not None else f"rank 0 to {MAX_RANK}"
        raise ArtifactError(
            "encoding", "shape has the wrong rank", expected=wanted, found=f"rank {len(shape)}"
        )
    if any(type(dimension) is not int or dimension < 1 for dimension in shape):
        raise ArtifactError(
            "encoding", "shape is wrong", expected="positive integers", found=list(shape)
        )
    if prod(shape) > U64_MAX:
        raise ArtifactError("encoding", "shape has more than 2^64-1 elements", found=list(shape))
    if layout.rank == 2 and (shape[0] % layout.row_block or shape[1] % layout.column_block):
        raise ArtifactError(
            "encoding",
            f"shape does not fit {layout.name}",
            expected=f"multiples of {layout.row_block} rows and {layout.column_block} columns",
            found=list(shape),
        )


def check_size(num_bytes: int) -> int:
    """Check that an encoded size is a 64-bit number, and return it."""
    if num_bytes > U64_MAX:
        raise ArtifactError(
            "encoding", "encoded size is too large", expected="at most 2^64-1", found=num_bytes
        )
    return num_bytes


def check_range(begin: int, end: int, count: int, what: str) -> None:
    """Check that [begin, end) lies in [0, count); `what` is an element, a row or a column.

    Raises:
        ArtifactError: `codec`.
    """
    if not 0 <= begin <= end <= count:
        raise ArtifactError(
            "codec",
            f"{what} range is outside the tensor",
            expected=f"0 <= begin <= end <= {count}",
            found=f"[{begin}, {end})",
        )


def check_array(
    array: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...], what: str
) -> None:
    """Check type and shape of an array of words.

    Args:
        array: The words.
        dtype: What their type must be.
        shape: What their shape must be.
        what: Format and kind of the words, for the message.

    Raises:
        ArtifactError: `codec`.
    """
    if array.shape != shape or array.dtype != dtype:
        raise ArtifactError(
            "codec",
            f"{what} do not fit the tensor",
            expected=f"{np.dtype(dtype).name} {list(shape)}",
            found=f"{array.dtype.name} {list(array.shape)}",
        )


def refuse_words(
    words: NDArray[Any],
    illegal: NDArray[np.bool_],
    what: str,
    legal: str,
    first_row: int,
    first_column: int = 0,
) -> None:
    """Refuse words if any of them is illegal.

    Args:
        words: The words, one or two axes: rows (or matrices of a stack), columns.
        illegal: Which of them are illegal, in the same shape.
        what: Format and kind of the words, for the message.
        legal: The words that are legal.
        first_row: Index in the object of the first of the rows.
        first_column: Index in the object of the first of the columns.

    Raises:
        ArtifactError: `codec`, with the position and the word.
    """
    if not illegal.any():
        return
    position = np.unravel_index(int(np.argmax(illegal)), illegal.shape)
    first = (first_row, first_column)[: words.ndim]
    place = [int(index) + begin for index, begin in zip(position, first, strict=True)]
    word = words[position]
    raise ArtifactError(
        "codec",
        f"illegal {what} at {place}",
        expected=legal,
        found=int(word) if word.dtype.kind == "i" else f"{int(word):#0{2 + 2 * word.itemsize}x}",
    )
