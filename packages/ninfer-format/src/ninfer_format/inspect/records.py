"""Lists of objects, bindings and resources: aligned lines for a person, records for JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ninfer_format.commandline.printable import printable
from ninfer_format.container.reader import Artifact
from ninfer_format.container.schema import Binding, ObjectRecord, Part, TensorRecord, Use


def object_lines(artifact: Artifact) -> Iterator[str]:
    """One line for each object: offset, bytes, kind, encoding, shape and name."""
    header = ("offset", "bytes", "kind", "format/layout", "shape", "id")
    rows = [_object_row(record) for record in artifact.directory.objects]
    return _aligned([header, *rows], right={0, 1})


def object_records(artifact: Artifact) -> list[dict[str, Any]]:
    """The records of all objects as the directory has them."""
    return [record.to_json() for record in artifact.directory.objects]


def binding_lines(artifact: Artifact) -> Iterator[str]:
    """One line for each parameter: elements, where they are, and the uses of the parameter."""
    uses: dict[str, list[str]] = defaultdict(list)
    for use in artifact.directory.uses:
        uses[use.parameter].append(_use_text(use, artifact))
    header = ("parameter", "elements", "stored in", "used at")
    rows = [
        (
            printable(name),
            str(artifact.parameter_elements(name)),
            _binding_text(binding, artifact),
            ", ".join(uses[name]),
        )
        for name, binding in artifact.directory.bindings.items()
    ]
    return _aligned([header, *rows], right={1})


def binding_records(artifact: Artifact) -> dict[str, Any]:
    """All bindings as the directory has them, by parameter."""
    return {name: binding.to_json() for name, binding in artifact.directory.bindings.items()}


def use_records(artifact: Artifact) -> list[dict[str, Any]]:
    """All uses as the directory has them."""
    return [use.to_json() for use in artifact.directory.uses]


def resource_lines(artifact: Artifact) -> Iterator[str]:
    """One line for each role of each component: component, role, bytes and object."""
    header = ("component", "role", "bytes", "object")
    rows = [
        (
            printable(record["component"]),
            printable(record["role"]),
            str(record["bytes"]),
            printable(record["object"]),
        )
        for record in resource_records(artifact)
    ]
    return _aligned([header, *rows], right={2})


def resource_records(artifact: Artifact) -> list[dict[str, Any]]:
    """All roles of all components with the object that fills them."""
    return [
        {
            "component": name,
            "role": role,
            "object": object_id,
            "bytes": artifact.record(object_id).num_bytes,
        }
        for name, component in artifact.directory.components.items()
        for role, object_id in component.resources.items()
    ]


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
    return (
        str(record.offset),
        str(record.num_bytes),
        kind,
        printable(encoding),
        shape,
        printable(record.id),
    )


def _binding_text(binding: Binding, artifact: Artifact) -> str:
    if binding.object is not None:
        return printable(binding.object)
    return " + ".join(_part_text(part, artifact) for part in binding.parts)


def _part_text(part: Part, artifact: Artifact) -> str:
    record = artifact.record(part.object)
    name = printable(part.object)
    if isinstance(record, TensorRecord) and len(record.shape) == 2:
        columns = record.shape[1]
        if part.begin % columns == 0 and part.end % columns == 0:
            return f"{name} rows {part.begin // columns}:{part.end // columns}"
    return f"{name} elements {part.begin}:{part.end}"


def _use_text(use: Use, artifact: Artifact) -> str:
    text = printable(use.input)
    if use.activation_policy is not None:
        text += f" {use.activation_policy}"
    for role, binding in use.auxiliaries.items():
        text += f" {printable(role)}={_binding_text(binding, artifact)}"
    return text


def _aligned(rows: Sequence[Sequence[str]], right: set[int]) -> Iterator[str]:
    """Lines with columns of equal width; the columns in `right` are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
