"""The lists of an artifact: objects, bindings, uses and resources, as lines and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ninfer_format.commandline.sizes import format_bytes
from ninfer_format.container.artifact import Artifact
from ninfer_format.container.schema import Binding, ObjectRecord, Part, TensorRecord, Use
from ninfer_format.inspect.aligned import aligned
from ninfer_format.inspect.selection import Selection


@dataclass(frozen=True, slots=True)
class ArtifactLists:
    """The lists of an artifact, without what the user has not selected.

    A glob is compared with the ids of objects, the names of parameters (also of uses) and
    ``COMPONENT/ROLE`` of resources.

    Attributes:
        artifact: The artifact.
        selection: What is wanted.
    """

    artifact: Artifact
    selection: Selection

    def names(self, kind: str) -> list[str]:
        """All names that a list has, selected or not."""
        directory = self.artifact.directory
        if kind == "objects":
            return [record.id for record in directory.objects]
        if kind == "bindings":
            return [*directory.bindings]
        if kind == "uses":
            return [use.parameter for use in directory.uses]
        return [name for name, _, _ in self._all_resources()]

    def lines(self, kind: str) -> Iterator[str]:
        """A list as lines with a header."""
        make = {
            "objects": self._object_lines,
            "bindings": self._binding_lines,
            "uses": self._use_lines,
            "resources": self._resource_lines,
        }
        return make[kind]()

    def records(self, kind: str) -> dict[str, Any]:
        """A list as members of the JSON document, as the directory has it."""
        if kind == "objects":
            return {"object_records": [record.to_json() for record in self._objects]}
        if kind == "uses":
            return {"use_records": [use.to_json() for use in self._uses]}
        if kind == "resources":
            return {"resource_records": self._resource_records()}
        return {
            "binding_records": {n: binding.to_json() for n, binding in self._bindings.items()},
            "binding_sizes": self._sizes(),
            "use_records": [use.to_json() for use in self._uses],
        }

    # --- what is selected ------------------------------------------------------------------

    @property
    def _objects(self) -> list[ObjectRecord]:
        return [item for item in self.artifact.directory.objects if item.id in self.selection]

    @property
    def _bindings(self) -> dict[str, Binding]:
        bindings = self.artifact.directory.bindings
        return {name: item for name, item in bindings.items() if name in self.selection}

    @property
    def _uses(self) -> list[Use]:
        return [use for use in self.artifact.directory.uses if use.parameter in self.selection]

    def _all_resources(self) -> Iterator[tuple[str, str, str]]:
        """Full name, component and role of each resource."""
        for name, component in self.artifact.directory.components.items():
            for role in component.resources:
                yield f"{name}/{role}", name, role

    def _resource_records(self) -> list[dict[str, Any]]:
        components = self.artifact.directory.components
        return [
            {
                "component": component,
                "role": role,
                "object": components[component].resources[role],
                "bytes": self.artifact.record(components[component].resources[role]).num_bytes,
            }
            for name, component, role in self._all_resources()
            if name in self.selection
        ]

    def _sizes(self) -> dict[str, dict[str, int]]:
        """Elements of each parameter, and its part of the bytes of the objects that hold them."""
        tensors = {record.id: record for record in self.artifact.directory.tensors}
        sizes = {}
        for name in self._bindings:
            parts = [(tensors[part.object], part) for part in self.artifact.parts(name)]
            sizes[name] = {
                "elements": sum(part.end - part.begin for _, part in parts),
                "bytes": sum(
                    record.num_bytes * (part.end - part.begin) // record.elements
                    for record, part in parts
                ),
            }
        return sizes

    # --- lines -----------------------------------------------------------------------------

    def _object_lines(self) -> Iterator[str]:
        header = ("offset", "bytes", "kind", "format/layout", "shape", "id")
        rows = [_object_row(record) for record in self._objects]
        return aligned(header, rows, numbers={"offset", "bytes"})

    def _binding_lines(self) -> Iterator[str]:
        uses: dict[str, list[str]] = defaultdict(list)
        for use in self._uses:
            uses[use.parameter].append(_use_text(use, self.artifact))
        header = ("parameter", "elements", "size", "stored in", "used at")
        rows = []
        sizes = self._sizes()
        for name, binding in self._bindings.items():
            size = sizes[name]
            elements, num_bytes = str(size["elements"]), format_bytes(size["bytes"])
            place = _binding_text(binding, self.artifact)
            rows.append((name, elements, num_bytes, place, ", ".join(uses[name])))
        return aligned(header, rows, numbers={"elements", "size"})

    def _use_lines(self) -> Iterator[str]:
        header = ("parameter", "input", "policy", "auxiliaries")
        rows = [
            (
                use.parameter,
                use.input,
                use.activation_policy or "-",
                _auxiliaries_text(use, self.artifact) or "-",
            )
            for use in self._uses
        ]
        return aligned(header, rows)

    def _resource_lines(self) -> Iterator[str]:
        header = ("component", "role", "bytes", "object")
        rows = [
            (record["component"], record["role"], str(record["bytes"]), record["object"])
            for record in self._resource_records()
        ]
        return aligned(header, rows, numbers={"bytes"})


def _object_row(record: ObjectRecord) -> tuple[str, ...]:
    if isinstance(record, TensorRecord):
        kind, encoding = "tensor", f"{record.format}/{record.layout}"
        if record.divisors != 1:
            encoding += f" divisors={record.divisors}"
        if record.bitrate_half_bits is not None:
            encoding += f" bits={record.bitrate_half_bits / 2:g}"
        shape = str(list(record.shape))
    else:
        kind, encoding, shape = "resource", record.encoding, "-"
    return (str(record.offset), str(record.num_bytes), kind, encoding, shape, record.id)


def _binding_text(binding: Binding, artifact: Artifact) -> str:
    if binding.object is not None:
        return binding.object
    return " + ".join(_part_text(part, artifact) for part in binding.parts)


def _part_text(part: Part, artifact: Artifact) -> str:
    record = artifact.record(part.object)
    if isinstance(record, TensorRecord) and len(record.shape) == 2:
        columns = record.shape[1]
        if part.begin % columns == 0 and part.end % columns == 0:
            return f"{part.object} rows {part.begin // columns}:{part.end // columns}"
    return f"{part.object} elements {part.begin}:{part.end}"


def _use_text(use: Use, artifact: Artifact) -> str:
    texts = (use.input, use.activation_policy, _auxiliaries_text(use, artifact))
    return " ".join(text for text in texts if text)


def _auxiliaries_text(use: Use, artifact: Artifact) -> str:
    return " ".join(
        f"{role}={_binding_text(binding, artifact)}" for role, binding in use.auxiliaries.items()
    )
