"""Planning an artifact: where objects lie, what the directory says, how files are cut.

Planning needs only shapes and the resources' bytes. The finished directory goes through the
reader's own checks, so that a bad plan fails before anything is written (container specification,
sections 7.1 and 7.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ninfer_format.codecs import check_encoding, codec_for
from ninfer_format.container.checks import parse_directory
from ninfer_format.container.framing import (
    FILE_ALIGNMENT,
    HEADER_BYTES,
    MAX_JSON_BYTES,
    payload_start,
    total_file_bytes,
)
from ninfer_format.container.json_text import dump_json, parse_json
from ninfer_format.container.location import located
from ninfer_format.container.schema import (
    Binding,
    Component,
    Directory,
    FileSegment,
    ObjectRecord,
    ResourceRecord,
    TensorRecord,
    Use,
)
from ninfer_format.errors import ArtifactError, FileLimitError
from ninfer_format.layouts import RAW_BYTES_V1, align_up, get_layout

DEFAULT_MAX_FILE_BYTES = 32_000_000_000


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be stored; the members are those of `TensorRecord`."""

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    divisors: int = 1
    bitrate_half_bits: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """A resource to be stored, with its bytes."""

    id: str
    data: bytes
    encoding: str = RAW_BYTES_V1


@dataclass(frozen=True, slots=True)
class ArtifactPlan:
    """A complete artifact except for the bytes of its tensors.

    Attributes:
        directory: As it will be read back.
        json_bytes: The directory's text, padded with spaces so that the payload follows at once.
        entry_payload_start: Offset of the payload in the entry file.
        segments: Payload bytes of each file.
        resources: The bytes of each resource object, by id.
        entry_name: File name of the entry, from which the parts have their names.
        max_file_bytes: Limit for the length of each file.
    """

    directory: Directory
    json_bytes: bytes
    entry_payload_start: int
    segments: tuple[int, ...]
    resources: Mapping[str, bytes]
    entry_name: str
    max_file_bytes: int

    @property
    def file_bytes(self) -> int:
        """Total length of all files."""
        return total_file_bytes(self.entry_payload_start, self.segments)

    def for_entry(self, name: str) -> ArtifactPlan:
        """The same artifact with an entry file called `name`.

        Part names are in the directory, so its length and with it the cut may change.
        """
        if name == self.entry_name:
            return self
        return _cut(self.directory, self.resources, name, self.max_file_bytes)


def plan_artifact(
    specs: Sequence[TensorSpec | ResourceSpec],
    *,
    components: Mapping[str, Component],
    bindings: Mapping[str, Binding],
    uses: Sequence[Use] = (),
    metadata: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    entry_name: str = "model.ninfer",
) -> ArtifactPlan:
    """Place objects in the given order and cut the payload into files.

    Args:
        specs: The objects, in payload order.
        components: Component id to component; must contain ``text``.
        bindings: Parameter name to where its elements are.
        uses: Where parameters meet activations.
        metadata: Free, but for an optional ``name``.
        provenance: Free.
        max_file_bytes: Limit for the length of each file, header and directory included.
        entry_name: File name of the entry; `ArtifactWriter` plans again if its path says otherwise.

    Returns:
        The plan.

    Raises:
        FileLimitError: The limit leaves no room for payload.
        ArtifactError: `encoding`: a tensor that its layout cannot store; `writer`: the directory is
            too long; otherwise as the reader would report it.
    """
    if not specs:
        raise ArtifactError("schema", "an artifact has at least one object")
    objects = _place(specs)
    directory = Directory(
        components=components,
        objects=objects,
        bindings=bindings,
        uses=tuple(uses),
        files=(FileSegment(None, objects[-1].end),),
        metadata=metadata or {},
        provenance=provenance or {},
    )
    resources = {spec.id: spec.data for spec in specs if isinstance(spec, ResourceSpec)}
    return _cut(directory, resources, entry_name, max_file_bytes)


def segment_payload(
    entry_payload_start: int, payload_bytes: int, max_file_bytes: int
) -> tuple[int, ...]:
    """Cut a payload into files of at most `max_file_bytes`.

    All but the last segment are multiples of 4096 bytes long.

    Returns:
        Payload bytes of each file, the entry first.

    Raises:
        FileLimitError: A file of that size holds no payload.
    """
    if entry_payload_start + payload_bytes <= max_file_bytes:
        return (payload_bytes,)
    first = (max_file_bytes - entry_payload_start) // FILE_ALIGNMENT * FILE_ALIGNMENT
    other = (max_file_bytes - FILE_ALIGNMENT) // FILE_ALIGNMENT * FILE_ALIGNMENT
    if first <= 0 or other <= 0:
        raise FileLimitError(entry_payload_start + FILE_ALIGNMENT, max_file_bytes)
    full, rest = divmod(payload_bytes - first, other)
    return (first, *[other] * full, *([rest] if rest else []))


def _place(specs: Sequence[TensorSpec | ResourceSpec]) -> tuple[ObjectRecord, ...]:
    records: list[ObjectRecord] = []
    end = 0
    for spec in specs:
        with located(object_id=spec.id):
            record = _place_one(spec, end)
        check_encoding(record)
        records.append(record)
        end = record.end
    return tuple(records)


def _place_one(spec: TensorSpec | ResourceSpec, end: int) -> ObjectRecord:
    """Place an object behind the one that ends at `end`."""
    if isinstance(spec, ResourceSpec):
        if not spec.data:
            raise ArtifactError("schema", "resource is empty", expected="1 byte or more", found=0)
        return ResourceRecord(spec.id, spec.encoding, end, len(spec.data))
    geometry = codec_for(spec.format, spec.layout).geometry(
        spec.shape, divisors=spec.divisors, bitrate_half_bits=spec.bitrate_half_bits
    )
    return TensorRecord(
        id=spec.id,
        shape=spec.shape,
        format=spec.format,
        layout=spec.layout,
        offset=align_up(end, get_layout(spec.layout).alignment),
        num_bytes=geometry.num_bytes,
        divisors=spec.divisors,
        bitrate_half_bits=spec.bitrate_half_bits,
    )


def _cut(
    directory: Directory, resources: Mapping[str, bytes], entry_name: str, max_file_bytes: int
) -> ArtifactPlan:
    """Find the shortest directory reserve that holds its own table of files."""
    value = directory.to_json()
    payload_bytes = directory.payload_bytes
    value["files"] = [FileSegment(None, payload_bytes).to_json()]
    text = dump_json(value)
    # Everything but the file table is final, and the checks do not depend on the cut.
    directory = parse_directory(parse_json(text), entry_name)
    reserve = 0
    while len(text) > reserve:
        reserve = align_up(HEADER_BYTES + len(text), FILE_ALIGNMENT) - HEADER_BYTES
        start = payload_start(reserve)
        segments = segment_payload(start, payload_bytes, max_file_bytes)
        files = _name_files(segments, entry_name)
        value["files"] = [file.to_json() for file in files]
        text = dump_json(value)
    if reserve > MAX_JSON_BYTES:
        raise ArtifactError(
            "writer",
            "directory is too long",
            expected=f"at most {MAX_JSON_BYTES} bytes",
            found=reserve,
        )
    return ArtifactPlan(
        directory=replace(directory, files=files),
        json_bytes=text.ljust(reserve, b" "),
        entry_payload_start=start,
        segments=segments,
        resources=resources,
        entry_name=entry_name,
        max_file_bytes=max_file_bytes,
    )


def _name_files(segments: Sequence[int], entry_name: str) -> tuple[FileSegment, ...]:
    first, *others = segments
    parts = (
        FileSegment(f"{entry_name}.part-{index:04d}", payload_bytes)
        for index, payload_bytes in enumerate(others, start=1)
    )
    return (FileSegment(None, first), *parts)
