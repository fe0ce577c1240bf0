"""The values of one tensor of any source, read in pieces whose size does not depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ninfer_format.checkpoint.open_checkpoint import Checkpoint
from ninfer_format.container.artifact import Artifact
from ninfer_format.container.flat_tensor import flat_tensor
from ninfer_format.container.location import located
from ninfer_format.container.schema import Part, TensorRecord
from ninfer_format.container.stored_tensor import StoredTensor
from ninfer_format.errors import ArtifactError, CheckpointError
from ninfer_format.inspect.source import Source
from ninfer_format.nearest import did_you_mean

CHUNK_BYTES = 1 << 18
"""Encoded bytes that are decoded at a time: the values then stay in the processor's caches."""
_CHUNK_ELEMENTS = 1 << 18
"""Elements of a checkpoint's tensor that are read at a time."""


class TensorValues(Protocol):
    """A tensor that can be read in pieces.

    Attributes:
        name: What it is called.
        kind: What it is: ``object``, ``parameter`` or ``tensor``.
        formats: Numeric formats of what is stored.
        shape: Its shape in C order.
        num_bytes: Stored bytes that belong to it.
        dtype: Type of the values.
    """

    name: str
    kind: str
    formats: tuple[str, ...]
    shape: tuple[int, ...]
    num_bytes: int
    dtype: np.dtype[Any]

    def pieces(self, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """The values of elements [begin, end), flat in C order, piece after piece."""
        ...


def find_values(source: Source, name: str) -> TensorValues:
    """Find a tensor by its name; in an artifact a parameter, else an object.

    Raises:
        ArtifactError: `reference`: the artifact has neither; `encoding`.
        CheckpointError: The checkpoint has no such tensor.
    """
    if not isinstance(source, Artifact):
        if name not in source:
            raise CheckpointError(
                f"no tensor {name!r}",
                path=source.path,
                tensors=(name,),
                hint=did_you_mean(name, source.names),
            )
        return CheckpointValues(source, name)
    if name in source.directory.bindings:
        return StoredValues(source, name, "parameter", source.parts(name))
    tensors = {record.id: record for record in source.directory.tensors}
    if name in tensors:
        return StoredValues(source, name, "object", (Part(name, 0, tensors[name].elements),))
    raise ArtifactError(
        "reference",
        f"no parameter and no tensor object is called {name!r}",
        path=source.path,
        hint=did_you_mean(name, [*source.directory.bindings, *tensors]),
    )


class StoredValues:
    """A parameter or a tensor object of an artifact; implements `TensorValues`.

    Args:
        artifact: The artifact.
        name: Name of the parameter or id of the object.
        kind: ``parameter`` or ``object``.
        parts: Where its elements are.

    Raises:
        ArtifactError: `reference`: the parts are integers and reals together, or name elements so
            often that they are more than the artifact has; `encoding`.
    """

    def __init__(self, artifact: Artifact, name: str, kind: str, parts: Sequence[Part]) -> None:
        records = {record.id: record for record in artifact.directory.tensors}
        stored = [records[part.object] for part in parts]
        self.name = name
        self.kind = kind
        self.formats = tuple(sorted({record.format for record in stored}))
        self.shape = _shape(stored, parts)
        self.num_bytes = sum(
            record.num_bytes * (part.end - part.begin) // record.elements
            for record, part in zip(stored, parts, strict=True)
        )
        self.parts = tuple(parts)
        self._artifact = artifact
        self._tensors = [flat_tensor(artifact, record) for record in stored]
        dtypes = {tensor.dtype for tensor in self._tensors}
        if len(dtypes) > 1:
            raise self._failure("is bound to integers and reals together")
        # A few bytes of a directory could ask for any number of values.
        if prod(self.shape) > sum(record.elements for record in records.values()):
            raise self._failure(f"has {prod(self.shape)} elements, more than the whole artifact")
        (self.dtype,) = dtypes

    def pieces(self, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """The values of elements [begin, end); see `TensorValues`."""
        first = 0
        for part, tensor in zip(self.parts, self._tensors, strict=True):
            last = first + part.end - part.begin
            low, high = max(begin, first), min(end, last)
            if low < high:
                shift = part.begin - first
                yield from self._decoded(tensor, low + shift, high + shift)
            first = last

    def _decoded(self, tensor: StoredTensor, begin: int, end: int) -> Iterator[NDArray[Any]]:
        width = tensor.row_elements
        for first, last in tensor.slices(begin // width, -(-end // width), CHUNK_BYTES):
            low, high = max(begin, first * width), min(end, last * width)
            with located(self._artifact.path, tensor.record.id):
                codec, payload = tensor.row_slice(first, last)
                values = codec.decode_range(payload, low - first * width, high - first * width)
            yield values

    def _failure(self, message: str) -> ArtifactError:
        return ArtifactError(
            "reference", f"{self.kind} {self.name!r} {message}", path=self._artifact.path
        )


class CheckpointValues:
    """A tensor of a checkpoint; implements `TensorValues`."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        tensor = checkpoint.info(name)
        self.name = name
        self.kind = "tensor"
        self.formats: tuple[str, ...] = (tensor.dtype,)
        self.shape = tensor.shape
        self.num_bytes = tensor.num_bytes
        self.dtype = checkpoint.read(name, 0, 0).dtype
        self._checkpoint = checkpoint

    def pieces(self, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """The values of elements [begin, end); see `TensorValues`."""
        for first in range(begin, end, _CHUNK_ELEMENTS):
            yield self._checkpoint.read(self.name, first, min(end, first + _CHUNK_ELEMENTS))


def _shape(stored: Sequence[TensorRecord], parts: Sequence[Part]) -> tuple[int, ...]:
    """The shape of a parameter as far as its parts tell it.

    A whole object gives its shape; rows of matrices of one width make a matrix. Anything else is
    flat: only the architecture knows the shape of a parameter.
    """
    elements = sum(part.end - part.begin for part in parts)
    if len(parts) == 1 and elements == stored[0].elements:
        return stored[0].shape
    if all(len(record.shape) == 2 for record in stored):
        widths = {record.shape[1] for record in stored}
        columns = stored[0].shape[1]
        edges = [edge for part in parts for edge in (part.begin, part.end)]
        if len(widths) == 1 and all(edge % columns == 0 for edge in edges):
            return (elements // columns, columns)
    return (elements,)
