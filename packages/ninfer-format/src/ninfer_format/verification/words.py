"""Checking every word and all padding of the objects, slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import Lock

import numpy as np

from ninfer_format.codecs.geometry import Span
from ninfer_format.container.artifact import Artifact
from ninfer_format.container.flat_tensor import flat_tensor
from ninfer_format.container.schema import ObjectRecord, ResourceRecord
from ninfer_format.container.stored_tensor import StoredTensor
from ninfer_format.errors import ArtifactError
from ninfer_format.verification.problems import Problem, problem_of
from ninfer_format.workers import Advance

SLICE_BYTES = 1 << 18
"""Encoded bytes that a worker checks at a time. The words and masks of a slice then stay in the
second-level cache, and the memory of many workers stays small."""
_TASK_BYTES = 1 << 26
"""Encoded bytes of a task: large objects are shared out among the workers."""
_LARGE_BYTES = 1 << 23
_one_large_slice = Lock()
"""Held while a slice of more than `_LARGE_BYTES` is checked, which cannot be cut any smaller."""

MOST_PROBLEMS = 20
"""Problems that a task lists; it counts the rest."""

CheckTask = Callable[[Advance], list[Problem]]


def words_tasks(artifact: Artifact, record: ObjectRecord) -> Iterator[CheckTask]:
    """Tasks that together read all of an object and return what is wrong with it.

    The first illegal word of each slice of about `SLICE_BYTES` is reported. The bytes that the
    tasks count are the object's size.
    """
    if isinstance(record, ResourceRecord):
        yield partial(_read_resource, artifact, record)
        return
    tensor = flat_tensor(artifact, record)
    if tensor.codec.padding:
        yield partial(_check_padding, artifact, tensor)
    for begin, end in tensor.slices(0, tensor.codec.rows, _TASK_BYTES):
        yield partial(_check_rows, tensor, begin, end)


def _read_resource(artifact: Artifact, record: ResourceRecord, advance: Advance) -> list[Problem]:
    """Read bytes that cannot be wrong, to see that they can be read."""
    problems = []
    for offset in range(record.offset, record.end, SLICE_BYTES):
        piece = np.empty(min(SLICE_BYTES, record.end - offset), np.uint8)
        try:
            artifact.payload.read_into(offset, piece)
        except (ArtifactError, OSError) as error:
            problems.append(problem_of(error, object_id=record.id, offset=offset))
        advance(piece.size, record.id)
    return _limited(problems, record)


def _check_padding(artifact: Artifact, tensor: StoredTensor, advance: Advance) -> list[Problem]:
    """Check the gaps between the planes, which are part of no row."""
    record = tensor.record
    problems = []
    for begin, length in tensor.codec.padding:
        gap = np.empty(length, np.uint8)
        offset = record.offset + begin
        try:
            artifact.payload.read_into(offset, gap)
        except (ArtifactError, OSError) as error:
            problems.append(problem_of(error, object_id=record.id, offset=offset))
            continue
        wrong = np.flatnonzero(gap)
        if wrong.size:
            place = int(wrong[0])
            message = f"padding is not zero (expected 0, found {gap[place]})"
            problems.append(Problem("codec", message, record.id, offset + place))
    return _limited(problems, record)


def _check_rows(tensor: StoredTensor, begin: int, end: int, advance: Advance) -> list[Problem]:
    record = tensor.record
    problems = []
    for first, last in tensor.slices(begin, end, SLICE_BYTES):
        spans = tensor.codec.row_slice(first, last).spans
        with _room_for(spans):
            try:
                codec, payload = tensor.row_slice(first, last)
                codec.verify(payload)
            except (ArtifactError, OSError) as error:
                offset = record.offset + _offset_in_object(error, spans)
                problems.append(problem_of(error, object_id=record.id, offset=offset))
        advance(_bytes_before(tensor, last) - _bytes_before(tensor, first), record.id)
    return _limited(problems, record)


def _room_for(spans: tuple[Span, ...]) -> AbstractContextManager[object]:
    large = sum(span.length for span in spans) > _LARGE_BYTES
    return _one_large_slice if large else nullcontext()


def _offset_in_object(error: ArtifactError | OSError, spans: tuple[Span, ...]) -> int:
    """Where in the object a byte of a slice is; 0, the object's start, if no byte is known."""
    place = error.offset if isinstance(error, ArtifactError) else None
    for span in spans:
        if place is not None and span.target <= place < span.target + span.length:
            return span.source + place - span.target
    return 0


def _bytes_before(tensor: StoredTensor, row: int) -> int:
    """The share of the object's bytes, padding included, of the rows before `row`."""
    return tensor.record.num_bytes * row // tensor.codec.rows


def _limited(problems: list[Problem], record: ObjectRecord) -> list[Problem]:
    """At most `MOST_PROBLEMS`: a file of garbage must not fill the memory with messages."""
    more = len(problems) - MOST_PROBLEMS
    if more <= 0:
        return problems
    rest = Problem("codec", f"and {more} more slices with problems", record.id, record.offset)
    return [*problems[:MOST_PROBLEMS], rest]
