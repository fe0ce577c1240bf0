"""An open artifact: its objects as bytes, words and values, and its logical parameters."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from ninfer_format.codecs import check_encoding, codec_of
from ninfer_format.codecs.base import Codec
from ninfer_format.codecs.geometry import ByteArray
from ninfer_format.container.framing import total_file_bytes
from ninfer_format.container.location import located
from ninfer_format.container.logical_parameter import BoundPart, LogicalParameter, Rows
from ninfer_format.container.payload import Buffer, Payload
from ninfer_format.container.schema import (
    Directory,
    ObjectRecord,
    Part,
    ResourceRecord,
    TensorRecord,
)
from ninfer_format.container.stored_tensor import StoredTensor
from ninfer_format.errors import ArtifactError

MAX_REPEATED_ELEMENTS = 2**22
"""Most elements of a parameter that repeats some, where nobody but the file says how many."""


class Artifact:
    """An open artifact; a context manager. Made by `ninfer_format.open_artifact`.

    All methods may be called from several threads. Arrays stay valid after `close`. Decoding takes
    a multiple of the encoded size: at 1 bit a weight the float32 values are 32 times as large.

    Attributes:
        path: The entry file.
        artifact_id: 16 bytes that identify the set of files.
        directory: Everything the JSON says.
        payload: The logical payload.
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
        self.payload = payload
        self._entry_payload_start = entry_payload_start
        self._records = {record.id: record for record in directory.objects}
        self._tensors: dict[str, StoredTensor] = {}

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
        self.payload.close()

    @property
    def name(self) -> str | None:
        """The name in the metadata, if there is one."""
        return self.directory.name

    @property
    def payload_bytes(self) -> int:
        """Length of the logical payload."""
        return self.payload.num_bytes

    @property
    def file_bytes(self) -> int:
        """Total length of all files of the set, present or not."""
        segments = [file.payload_bytes for file in self.directory.files]
        return total_file_bytes(self._entry_payload_start, segments)

    @property
    def file_paths(self) -> tuple[Path, ...]:
        """All files of the set, present or not, the entry first."""
        parts = (file.path for file in self.directory.files if file.path is not None)
        return (self.path, *map(self.path.with_name, parts))

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
            ArtifactError: `range` or `part`; `framing` or `part` if a file was cut short.
            OSError: A file cannot be read.
        """
        with located(self.path):
            return self.payload.read(offset, length)

    def read_into(self, offset: int, buffer: Buffer) -> None:
        """Fill a buffer with the logical payload bytes from `offset` on.

        The memory of the process does not grow with what has been read, as it does with views.
        Raises the same errors as `read_range`.
        """
        with located(self.path):
            self.payload.read_into(offset, buffer)

    def read_object(self, object_id: str) -> ByteArray:
        """The encoded bytes of an object: uint8 [num_bytes], read-only.

        Not copied where the object lies in one file.

        Raises:
            ArtifactError: `reference`, `encoding` or `part`.
            OSError: A continuation file cannot be read.
        """
        record = self.record(object_id)
        with located(self.path):
            if isinstance(record, ResourceRecord):
                check_encoding(record)
                return self.payload.view(record.offset, record.num_bytes)
            return self._tensor(object_id).view()

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

    def codec(self, object_id: str) -> Codec[Any]:
        """The codec of a tensor, whose record is checked the first time.

        Raises:
            ArtifactError: `reference`: not a tensor; `encoding`: it cannot be interpreted.
        """
        return self._tensor(object_id).codec

    def row_slice_payload(
        self, object_id: str, begin: int, end: int
    ) -> tuple[Codec[Any], ByteArray]:
        """Rows [begin, end) of a tensor as a tensor of their own, without reading the others.

        Returns:
            The codec of the rows and their payload: uint8 [bytes].

        Raises:
            ArtifactError: `codec`: the layout cannot cut there; `reference`, `encoding` or `part`.
            OSError: A continuation file cannot be read.
        """
        with located(self.path):
            return self._tensor(object_id).row_slice(begin, end)

    def words(self, object_id: str) -> Any:
        """The stored words of a tensor, as its codec defines them.

        Raises:
            ArtifactError: `reference`: not a tensor; `encoding` or `part`; `codec`: an illegal
                word of a format that is judged when it is decoded.
            OSError: A continuation file cannot be read.
        """
        with located(self.path, object_id):
            tensor = self._tensor(object_id)
            return tensor.codec.decode_words(tensor.view())

    def decode_object(self, object_id: str) -> NDArray[Any]:
        """The values of a tensor in its logical shape: float32, or int32 for int32 tensors.

        Raises the same errors as `words`.
        """
        with located(self.path):
            tensor = self._tensor(object_id)
            return tensor.elements(0, tensor.record.elements).reshape(tensor.record.shape)

    def verify_object(self, object_id: str) -> None:
        """Read an object and check every word and all padding in it.

        Raises:
            ArtifactError: `codec`: an illegal word or padding that is not zero; `encoding`,
                `part` or `reference`.
            OSError: A continuation file cannot be read.
        """
        payload = self.read_object(object_id)
        if not isinstance(self.record(object_id), ResourceRecord):
            with located(self.path, object_id):
                self._tensor(object_id).codec.verify(payload)

    # --- parameters ------------------------------------------------------------------------

    def parts(self, name: str) -> tuple[Part, ...]:
        """Where the elements of a parameter are, one part after the other.

        Raises:
            ArtifactError: `reference`: the parameter is not bound.
        """
        try:
            binding = self.directory.bindings[name]
        except KeyError:
            raise self._missing(f"parameter {name!r} is not bound") from None
        if binding.object is None:
            return binding.parts
        return (Part(binding.object, 0, self._tensor_record(binding.object).elements),)

    def parameter_elements(self, name: str) -> int:
        """Number of logical elements that a parameter is bound to.

        Raises:
            ArtifactError: `reference`: the parameter is not bound.
        """
        return sum(part.end - part.begin for part in self.parts(name))

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
                `shape` has, or to integers and reals together; without `shape` also if it repeats
                elements and has more than `MAX_REPEATED_ELEMENTS`; `encoding`, `part` or `codec`.
            OSError: A continuation file cannot be read.
        """
        with located(self.path):
            return self._parameter(name, shape).values()

    def read_rows(
        self, name: str, rows: Rows, shape: tuple[int, ...] | None = None
    ) -> NDArray[Any]:
        """Values of some rows of a logical parameter; the others are not decoded.

        Args:
            name: Full name of the parameter.
            rows: The interval (begin, end), or the indices of rows: integers [n], in any order and
                with repeats.
            shape: Its shape, as for `decode_parameter`. A row is one index of the first axis.

        Returns:
            Values [n, ...], of the types of `decode_parameter`.

        Raises:
            ArtifactError: `range`: a row outside the parameter; otherwise as `decode_parameter`.
            OSError: A continuation file cannot be read.
        """
        with located(self.path):
            return self._parameter(name, shape).rows(rows)

    def read_columns(
        self, name: str, begin: int, end: int, shape: tuple[int, ...] | None = None
    ) -> NDArray[Any]:
        """Values of columns [begin, end) of a logical parameter that is a matrix [N, K].

        Where the parts are rows of matrices of the same width, the other columns are not decoded.

        Args:
            name: Full name of the parameter.
            begin: First column.
            end: The column after the last one.
            shape: Its shape, as for `decode_parameter`.

        Returns:
            Values [N, end - begin], of the types of `decode_parameter`.

        Raises:
            ArtifactError: `reference`: not a matrix; `range`: a column outside the parameter;
                otherwise as `decode_parameter`.
            OSError: A continuation file cannot be read.
        """
        with located(self.path):
            return self._parameter(name, shape).columns(begin, end)

    def _parameter(self, name: str, shape: tuple[int, ...] | None) -> LogicalParameter:
        parts = self.parts(name)
        if shape is None:
            shape = self._stated_shape(name, parts)
        bound = [BoundPart(self._tensor(part.object), part.begin, part.end) for part in parts]
        return LogicalParameter(name, bound, shape)

    def _stated_shape(self, name: str, parts: tuple[Part, ...]) -> tuple[int, ...]:
        """The shape that the directory gives to a parameter."""
        whole = self.directory.bindings[name].object
        if whole is not None:
            return self._tensor_record(whole).shape
        elements = sum(part.end - part.begin for part in parts)
        # A few bytes could ask for any amount of memory by naming the same elements again.
        if elements > MAX_REPEATED_ELEMENTS and _repeat_elements(parts):
            raise self._missing(
                f"parameter {name!r} repeats elements and has {elements} of them; "
                "such a size must be asked for with a shape"
            )
        return (elements,)

    def _tensor(self, object_id: str) -> StoredTensor:
        tensor = self._tensors.get(object_id)
        if tensor is None:
            record = self._tensor_record(object_id)
            with located(self.path):
                check_encoding(record)
            tensor = StoredTensor(self.payload, record, codec_of(record))
            self._tensors[object_id] = tensor
        return tensor

    def _tensor_record(self, object_id: str) -> TensorRecord:
        record = self.record(object_id)
        if isinstance(record, ResourceRecord):
            raise self._missing(f"object {object_id!r} is a resource, not a tensor")
        return record

    def _missing(self, message: str) -> ArtifactError:
        return ArtifactError("reference", message, path=self.path)


def _repeat_elements(parts: tuple[Part, ...]) -> bool:
    """Whether an element is in two parts."""
    ordered = sorted(parts, key=lambda part: (part.object, part.begin))
    return any(a.object == b.object and b.begin < a.end for a, b in pairwise(ordered))
