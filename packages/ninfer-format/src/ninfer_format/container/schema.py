"""The directory of an artifact as plain immutable records (container specification, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

MAX_RANK = 16
"""Most axes of a tensor."""

ActivationPolicy = Literal["A16Only", "AllowA8", "AllowA4"]
"""Which activation precisions a use permits besides 16 bit."""


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor object.

    Attributes:
        id: Unique name of the object.
        shape: Logical shape in C order, without physical padding.
        format: Name of the numeric format.
        layout: Name of the storage layout.
        offset: Byte offset in the logical payload.
        num_bytes: Exact encoded size.
        divisors: Number of stacked source matrices that were quantized separately.
        bitrate_half_bits: Twice the bits per weight of a trellis-coded tensor, else None.
    """

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    offset: int
    num_bytes: int
    divisors: int = 1
    bitrate_half_bits: int | None = None

    @property
    def elements(self) -> int:
        """Number of logical elements; 1 for a scalar."""
        return prod(self.shape)

    @property
    def end(self) -> int:
        """Offset of the first byte after the object."""
        return self.offset + self.num_bytes

    def to_json(self) -> dict[str, Any]:
        """The record as the directory stores it; members with their default are left out."""
        record: dict[str, Any] = {
            "id": self.id,
            "shape": list(self.shape),
            "format": self.format,
            "layout": self.layout,
            "offset": self.offset,
            "bytes": self.num_bytes,
        }
        if self.divisors != 1:
            record["divisors"] = self.divisors
        if self.bitrate_half_bits is not None:
            record["bitrate_half_bits"] = self.bitrate_half_bits
        return record | {"kind": "tensor"}


@dataclass(frozen=True, slots=True)
class ResourceRecord:
    """A resource object: bytes such as a tokenizer file."""

    id: str
    encoding: str
    offset: int
    num_bytes: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the object."""
        return self.offset + self.num_bytes

    def to_json(self) -> dict[str, Any]:
        """The record as the directory stores it."""
        return {
            "id": self.id,
            "encoding": self.encoding,
            "offset": self.offset,
            "bytes": self.num_bytes,
            "kind": "resource",
        }


ObjectRecord = TensorRecord | ResourceRecord


@dataclass(frozen=True, slots=True)
class Proposal:
    """The reduced output head that a speculative backend may use.

    Attributes:
        domain: ``full`` covers the whole vocabulary, ``indexed`` a listed part of it.
        rows: Number of rows of an ``indexed`` head, else None.
    """

    domain: Literal["full", "indexed"]
    rows: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The record as the directory stores it."""
        return {"domain": self.domain} | ({} if self.rows is None else {"rows": self.rows})


@dataclass(frozen=True, slots=True)
class Component:
    """One model of the artifact, for example ``text`` or ``vision``.

    Attributes:
        config: Interpreted by the architecture only.
        target: The component that this one serves, if any.
        resources: Object id of the resource in each role.
        proposal: Only in ``text``.
    """

    config: Mapping[str, Any]
    target: str | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    proposal: Proposal | None = None

    def to_json(self) -> dict[str, Any]:
        """The component as the directory stores it."""
        component: dict[str, Any] = {"config": dict(self.config)}
        if self.target is not None:
            component["target"] = self.target
        if self.resources:
            component["resources"] = dict(self.resources)
        if self.proposal is not None:
            component["proposal"] = self.proposal.to_json()
        return component


@dataclass(frozen=True, slots=True)
class Part:
    """Logical elements [begin, end) of a tensor object, flat in C order."""

    object: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Binding:
    """Where the elements of a parameter are: a whole object, or parts one after the other.

    Exactly one of `object` and `parts` is given.
    """

    object: str | None = None
    parts: tuple[Part, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The binding as the directory stores it."""
        if self.object is not None:
            return {"object": self.object}
        return {
            "parts": [
                {"object": part.object, "range": [part.begin, part.end]} for part in self.parts
            ]
        }


@dataclass(frozen=True, slots=True)
class Use:
    """One place where a parameter meets an activation.

    Attributes:
        parameter: A key of the directory's bindings.
        input: Name of the mathematical input.
        activation_policy: Which activation precisions are permitted.
        auxiliaries: Further inputs of this use, by role.
    """

    parameter: str
    input: str
    activation_policy: ActivationPolicy | None = None
    auxiliaries: Mapping[str, Binding] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The use as the directory stores it."""
        use: dict[str, Any] = {"parameter": self.parameter, "input": self.input}
        if self.activation_policy is not None:
            use["activation_policy"] = self.activation_policy
        if self.auxiliaries:
            use["auxiliaries"] = {
                role: binding.to_json() for role, binding in self.auxiliaries.items()
            }
        return use


@dataclass(frozen=True, slots=True)
class FileSegment:
    """One file of the set: its name (None for the entry) and its share of the payload."""

    path: str | None
    payload_bytes: int

    def to_json(self) -> dict[str, Any]:
        """The segment as the directory stores it."""
        return {"path": self.path, "payload_bytes": self.payload_bytes}


@dataclass(frozen=True, slots=True)
class Directory:
    """Everything that the JSON of an artifact says."""

    components: Mapping[str, Component]
    objects: tuple[ObjectRecord, ...]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]
    files: tuple[FileSegment, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        """The artifact's name, if its metadata has one."""
        return self.metadata.get("name")

    @property
    def payload_bytes(self) -> int:
        """Length of the logical payload."""
        return sum(segment.payload_bytes for segment in self.files)

    @property
    def tensors(self) -> tuple[TensorRecord, ...]:
        """The tensor objects, in payload order."""
        return tuple(record for record in self.objects if isinstance(record, TensorRecord))

    @property
    def resources(self) -> tuple[ResourceRecord, ...]:
        """The resource objects, in payload order."""
        return tuple(record for record in self.objects if isinstance(record, ResourceRecord))

    def to_json(self) -> dict[str, Any]:
        """The directory as a JSON object."""
        return {
            "components": {key: value.to_json() for key, value in self.components.items()},
            "objects": [record.to_json() for record in self.objects],
            "bindings": {key: value.to_json() for key, value in self.bindings.items()},
            "uses": [use.to_json() for use in self.uses],
            "metadata": dict(self.metadata),
            "provenance": dict(self.provenance),
            "files": [segment.to_json() for segment in self.files],
        }
