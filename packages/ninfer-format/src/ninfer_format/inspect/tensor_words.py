"""The stored words of some rows of a tensor, read in pieces of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.flat_tensor import flat_tensor
from ninfer_format.container.location import located
from ninfer_format.container.schema import TensorRecord
from ninfer_format.container.stored_tensor import StoredTensor
from ninfer_format.errors import UsageError
from ninfer_format.inspect.intervals import Interval, resolve
from ninfer_format.inspect.tensor_values import CHUNK_BYTES, StoredValues, TensorValues
from ninfer_format.layouts import CONTIGUOUS_LE_V1

WORDS = "words"
"""Name of the array of a format that has only one."""


@dataclass(frozen=True, slots=True)
class PiecewiseArray:
    """An array that is written piece by piece along its first axis.

    Attributes:
        name: What it is called among the arrays of a tensor.
        dtype: Type of its elements.
        shape: Its shape.
        pieces: Starts reading it.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[NDArray[Any]]]


def word_arrays(
    artifact: Artifact, values: TensorValues, rows: Interval | None
) -> list[PiecewiseArray]:
    """The arrays that the words of a tensor are, as its codec defines them.

    Args:
        artifact: The artifact.
        values: A tensor object, or a parameter that is some rows of one.
        rows: Which rows of it; None for all.

    Raises:
        UsageError: The tensor has no words of its own, or its layout cannot be cut there.
    """
    record, begin, end = _stored_rows(artifact, values, rows)
    tensor = flat_tensor(artifact, record)
    if record.layout == CONTIGUOUS_LE_V1.name:
        return [_direct_words(artifact, tensor, record, begin, end)]
    block = tensor.codec.row_block or 1
    if begin % block or end % block:
        raise UsageError(
            f"--rows {begin}:{end} of object {record.id!r} cannot be cut out: "
            f"{record.layout} stores {block} rows together"
        )
    return _matrix_words(artifact, tensor, begin, end)


def _stored_rows(
    artifact: Artifact, values: TensorValues, rows: Interval | None
) -> tuple[TensorRecord, int, int]:
    """The object that holds the words, and the rows in it."""
    parts = values.parts if isinstance(values, StoredValues) else ()
    records = {record.id: record for record in artifact.directory.tensors}
    if len(parts) != 1 or len(values.shape) != len(records[parts[0].object].shape):
        raise UsageError(
            f"{values.name!r} is not some rows of one object, so it has no words of its own",
            hint="leave out --words, or name an object",
        )
    (part,) = parts
    record = records[part.object]
    height = values.shape[0] if values.shape else 1
    begin, end = resolve(rows, height, "--rows")
    first = part.begin // prod(record.shape[1:])
    return record, first + begin, first + end


def _direct_words(
    artifact: Artifact, tensor: StoredTensor, record: TensorRecord, begin: int, end: int
) -> PiecewiseArray:
    width = prod(record.shape[1:])
    codec, payload = tensor.row_slice(begin * width, begin * width + 1)
    shape = (end - begin, *record.shape[1:]) if record.shape else ()

    def pieces() -> Iterator[NDArray[Any]]:
        for _, words in _slices(artifact, tensor, begin * width, end * width):
            yield words

    return PiecewiseArray(WORDS, codec.decode_words(payload).dtype, shape, pieces)


def _matrix_words(
    artifact: Artifact, tensor: StoredTensor, begin: int, end: int
) -> list[PiecewiseArray]:
    matrix_rows = tensor.codec.rows // tensor.codec.divisors
    first, first_words = next(_slices(artifact, tensor, begin, end))

    def array_of(name: str) -> PiecewiseArray:
        sample: NDArray[Any] = getattr(first_words, name)
        # A layout for stacks is cut into blocks of many rows, of which only what a whole matrix
        # shares is a single entry.
        shared = tensor.codec.storage.has_divisors and sample.shape[0] == 1
        if shared:
            length = -(-end // matrix_rows) - begin // matrix_rows
        else:
            length = sample.shape[0] * (end - begin) // (first[1] - first[0])

        def pieces() -> Iterator[NDArray[Any]]:
            for (row, _), words in _slices(artifact, tensor, begin, end):
                if not shared or row == begin or row % matrix_rows == 0:
                    yield getattr(words, name)

        return PiecewiseArray(name, sample.dtype, (length, *sample.shape[1:]), pieces)

    return [array_of(field.name) for field in fields(first_words)]


def _slices(
    artifact: Artifact, tensor: StoredTensor, begin: int, end: int
) -> Iterator[tuple[tuple[int, int], Any]]:
    """Slices of rows [begin, end) with their words."""
    for first, last in tensor.slices(begin, end, CHUNK_BYTES):
        with located(artifact.path, tensor.record.id):
            codec, payload = tensor.row_slice(first, last)
            words = codec.decode_words(payload)
        yield (first, last), words
