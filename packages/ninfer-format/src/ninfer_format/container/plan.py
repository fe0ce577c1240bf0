"""Planning an artifact: where objects lie and what the directory says.

Planning needs only shapes and the resources' bytes (container specification, section 7.1); a bad
plan fails before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ninfer_format.codecs import check_encoding, codec_for
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
from ninfer_format.container.segments import DEFAULT_MAX_FILE_BYTES, FileSetPlan, plan_files
from ninfer_format.errors import ArtifactError
from ninfer_format.layouts import RAW_BYTES_V1, align_up, get_layout


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
class ArtifactPlan(FileSetPlan):
    """A complete artifact except for the bytes of its tensors.

    Attributes:
        resources: The bytes of each resource object, by id.
    """

    resources: Mapping[str, bytes]

    def for_entry(self, name: str) -> ArtifactPlan:
        """The same artifact with an entry file called `name`.

        Part names are in the directory, so its length and with it the cut may change.
        """
        if name == self.entry_name:
            return self
        return _complete(plan_files(self.directory, name, self.max_file_bytes), self.resources)


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
    objects = place_specs(specs)
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
    return _complete(plan_files(directory, entry_name, max_file_bytes), resources)


def _complete(files: FileSetPlan, resources: Mapping[str, bytes]) -> ArtifactPlan:
    known = {field.name: getattr(files, field.name) for field in fields(FileSetPlan)}
    return ArtifactPlan(**known, resources=resources)


def place_specs(
    specs: Sequence[TensorSpec | ResourceSpec], begin: int = 0
) -> tuple[ObjectRecord, ...]:
    """Place objects one after the other, each at its layout's alignment.

    Args:
        specs: The objects, in payload order.
        begin: Payload offset from which on there is room.

    Raises:
        ArtifactError: `encoding`: a tensor that its layout cannot store; `schema`: an empty
            resource.
    """
    records: list[ObjectRecord] = []
    end = begin
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
    geometry = codec_for(
        spec.format,
        spec.layout,
        spec.shape,
        divisors=spec.divisors,
        bitrate_half_bits=spec.bitrate_half_bits,
    ).geometry
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
