"""Reading artifacts: the directory at once, everything else when it is asked for."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ninfer_format.codecs import check_encoding, codec_for
from ninfer_format.container.checks import parse_directory
from ninfer_format.container.framing import (
    HEADER_BYTES,
    payload_start,
    total_file_bytes,
    unpack_entry_header,
)
from ninfer_format.container.json_text import parse_json
from ninfer_format.container.location import located
from ninfer_format.container.payload import Payload
from ninfer_format.container.regular_file import open_regular_file
from ninfer_format.container.schema import (
    Binding,
    Directory,
    ObjectRecord,
    Part,
    ResourceRecord,
    TensorRecord,
)
from ninfer_format.errors import ArtifactError


def open_artifact(path: str | PathLike[str]) -> Artifact:
    """Open an artifact by its entry file.

    Header and directory are read and checked; objects and continuation files are not touched.

    Raises:
        ArtifactError: The file is not an artifact of this version or breaks a rule; see
            `ArtifactError.category`.
        OSError: The file cannot be read.
    """
    entry = Path(path)
    with open_regular_file(entry, "framing") as file, located(entry):
        file_bytes = file.seek(0, 2)
        file.seek(0)
        header = unpack_entry_header(file.read(HEADER_BYTES), file_bytes, entry)
        with _collector_paused():
            directory = parse_directory(parse_json(file.read(header.number)), entry.name)
        start = payload_start(header.number)
        _check_length(start + directory.files[0].payload_bytes, file_bytes)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    payload = Payload(entry, mapping, start, directory.files, header.artifact_id)
    return Artifact(entry, header.artifact_id, directory, payload, start)


class Artifact:
    """An open artifact; a context manager. Made by `open_artifact`.

    All methods may be called from several threads. Arrays stay valid after `close`.

    Attributes:
        path: The entry file.
        artifact_id: 16 bytes that identify the set of files.
        directory: Everything the JSON says.
    """

    def __init__(
        self,
        path: Path,
        artifact_id: bytes,
        directory: Directory,
        payload: Payload,
        entry_payload_start: int,
    ) -> None:
        self.path = path
        self.artifact_id = artifact_id
        self.directory = directory
        self._payload = payload
        self._entry_payload_start = entry_payload_start
        self._records = {record.id: record for record in directory.objects}
        self._checked: set[str] = set()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the files."""
        self.close()

    def close(self) -> None:
        """Release the files; later reads fail."""
        self._payload.close()

    @property
    def name(self) -> str | None:
        """The name in the metadata, if there is one."""
        return self.directory.name

    @property
    def payload_bytes(self) -> int:
        """Length of the logical payload."""
        return self._payload.num_bytes

    @property
    def file_bytes(self) -> int:
        """Total length of all files of the set, present or not."""
        segments = [file.payload_bytes for file in self.directory.files]
        return total_file_bytes(self._entry_payload_start, segments)

    # --- bytes -----------------------------------------------------------------------------

    def record(self, object_id: str) -> ObjectRecord:
        """The directory's record of an object.

        Raises:
            ArtifactError: `reference`: there is no such object.
        """
        try:
            return self._records[object_id]
        except KeyError:
            raise self._missing(f"no object {object_id!r}") from None

    def read_range(self, offset: int, length: int) -> bytes:
        """Copy logical payload bytes [offset, offset + length), whatever they belong to.

        Raises:
            ArtifactError: `range` or `part`.
            OSError: A continuation file cannot be read.
        """
        with located(self.path):
            return self._payload.read(offset, length)

    def read_object(self, object_id: str) -> NDArray[np.uint8]:
        """The encoded bytes of an object: uint8 [num_bytes], read-only.

        Not copied where the object lies in one file.

        Raises:
            ArtifactError: `reference`, `encoding` or `part`.
            OSError: A continuation file cannot be read.
        """
        record = self.record(object_id)
        with located(self.path):
            if object_id not in self._checked:
                check_encoding(record)
                self._checked.add(object_id)
            return self._payload.view(record.offset, record.num_bytes)

    def has_resource(self, component: str, role: str) -> bool:
        """Whether `component` exists and has a resource in `role`."""
        found = self.directory.components.get(component)
        return found is not None and role in found.resources

    def resource(self, component: str, role: str) -> bytes:
        """The bytes of a component's resource.

        Raises:
            ArtifactError: `reference`: no such component or role; `encoding` or `part`.
            OSError: A continuation file cannot be read.
        """
        if not self.has_resource(component, role):
            raise self._missing(f"component {component!r} has no resource {role!r}")
        object_id = self.directory.components[component].resources[role]
        return self.read_object(object_id).tobytes()

    # --- tensors ---------------------------------------------------------------------------

    def words(self, object_id: str) -> Any:
        """The stored words of a tensor, as its codec defines them.

        Raises:
            ArtifactError: `reference`: not a tensor; `encoding` or `part`.
            OSError: A continuation file cannot be read.
        """
        record, payload = self._tensor(object_id)
        return codec_for(record.format, record.layout).decode_words(payload, record.shape)

    def decode_object(self, object_id: str) -> NDArray[Any]:
        """The values of a tensor in its logical shape: float32, or int32 for int32 tensors.

        Raises the same errors as `words`.
        """
        record, payload = self._tensor(object_id)
        return codec_for(record.format, record.layout).decode(payload, record.shape)

    def verify_object(self, object_id: str) -> None:
        """Read an object and check every word and all padding in it.

        Raises:
            ArtifactError: `codec`: an illegal word or padding that is not zero; `encoding`,
                `part` or `reference`.
            OSError: A continuation file cannot be read.
        """
        record = self.record(object_id)
        payload = self.read_object(object_id)
        if isinstance(record, TensorRecord):
            with located(self.path, object_id):
                codec_for(record.format, record.layout).verify(payload, record.shape)

    # --- parameters ------------------------------------------------------------------------

    def parameter_elements(self, name: str) -> int:
        """Number of logical elements that a parameter is bound to.

        Raises:
            ArtifactError: `reference`: the parameter is not bound.
        """
        return sum(part.end - part.begin for part in self._parts(self._binding(name)))

    def decode_parameter(self, name: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """The values of a logical parameter.

        Args:
            name: Full name of the parameter.
            shape: Its shape. Without it a parameter bound to a whole object has the object's
                shape, and one bound to parts is flat.

        Returns:
            float32, or int32 for a parameter made of int32 tensors; C-contiguous. May be a
            read-only view of the file.

        Raises:
            ArtifactError: `reference`: not bound, bound to another number of elements than
                `shape` has, or to integers and reals together; `encoding` or `part`.
            OSError: A continuation file cannot be read.
        """
        binding = self._binding(name)
        parts = self._parts(binding)
        elements = sum(part.end - part.begin for part in parts)
        if shape is None:
            shape = self._tensor_record(parts[0].object).shape if binding.object else (elements,)
        if prod(shape) != elements:
            raise self._missing(
                f"parameter {name!r} is bound to {elements} elements, "
                f"but its shape {list(shape)} has {prod(shape)}"
            )
        values = [self._decode_part(part) for part in parts]
        if len({value.dtype for value in values}) > 1:
            raise self._missing(f"parameter {name!r} is bound to integers and reals together")
        return (values[0] if len(values) == 1 else np.concatenate(values)).reshape(shape)

    def _decode_part(self, part: Part) -> NDArray[Any]:
        record, payload = self._tensor(part.object)
        codec = codec_for(record.format, record.layout)
        return codec.decode_range(payload, record.shape, part.begin, part.end)

    def _binding(self, name: str) -> Binding:
        try:
            return self.directory.bindings[name]
        except KeyError:
            raise self._missing(f"parameter {name!r} is not bound") from None

    def _parts(self, binding: Binding) -> tuple[Part, ...]:
        if binding.object is None:
            return binding.parts
        return (Part(binding.object, 0, self._tensor_record(binding.object).elements),)

    def _tensor(self, object_id: str) -> tuple[TensorRecord, NDArray[np.uint8]]:
        return self._tensor_record(object_id), self.read_object(object_id)

    def _tensor_record(self, object_id: str) -> TensorRecord:
        record = self.record(object_id)
        if isinstance(record, ResourceRecord):
            raise self._missing(f"object {object_id!r} is a resource, not a tensor")
        return record

    def _missing(self, message: str) -> ArtifactError:
        return ArtifactError("reference", message, path=self.path)


def _check_length(expected: int, found: int) -> None:
    if expected != found:
        raise ArtifactError(
            "framing",
            "wrong file length",
            expected=f"{expected} bytes",
            found=found,
            hint="the file is damaged or incomplete; copy it again",
        )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking a large directory again and again as it grows."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
