"""What ``--plan`` shows: every parameter with its source, format and object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ninfer_format.commandline import format_bytes

if TYPE_CHECKING:
    from ninfer_format import TensorRecord
    from ninfer_quant.pipeline.conversion import Conversion

PLANNED_NAME = "model.ninfer"
"""File name in a plan, which may be made without an output."""
_COLUMNS = ("parameter", "shape", "source", "format", "layout", "method", "object", "bytes")


def plan_document(conversion: Conversion) -> dict[str, Any]:
    """The plan as JSON values.

    Several parameters may lie in one object; the bytes of a parameter are then its share of the
    object's, by elements and rounded down. A parameter that shares the data of another one has
    that one as its source and no bytes.
    """
    plan = conversion.plan_artifact({}, PLANNED_NAME)
    records = {record.id: record for record in plan.directory.tensors}
    rows = _rows(conversion, records)
    return {
        "name": conversion.name,
        "assignments": rows + _shared_rows(conversion, rows),
        "objects": len(plan.directory.objects),
        "tensors": len(records),
        "payload_bytes": plan.directory.payload_bytes,
        "files": len(plan.segments),
        "warnings": list(conversion.warnings),
    }


def _rows(conversion: Conversion, records: Mapping[str, TensorRecord]) -> list[dict[str, Any]]:
    rows = []
    for weight in conversion.preparation.weights:
        record = records[weight.target.id]
        for part in weight.request.inputs:
            share = part.source.num_elements / record.elements
            rows.append(
                {
                    "parameter": part.parameter,
                    "shape": list(part.source.shape),
                    "source": part.source.label,
                    "format": record.format,
                    "layout": record.layout,
                    "method": weight.method_name,
                    "object": record.id,
                    "bytes": int(record.num_bytes * share),
                }
            )
    return rows


def _shared_rows(conversion: Conversion, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row | {"parameter": name, "source": owner, "method": "shared", "bytes": 0}
        for name, owner in conversion.preparation.shared.items()
        for row in rows
        if row["parameter"] == owner
    ]


def plan_lines(document: dict[str, Any]) -> list[str]:
    """The plan as an aligned table with a last line of totals."""
    rows = [_COLUMNS, *(_cells(row) for row in document["assignments"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [_aligned(row, widths) for row in rows]
    total = document["payload_bytes"]
    lines.append(
        f"{document['tensors']} tensors, {document['objects'] - document['tensors']} resources, "
        f"{total} bytes ({format_bytes(total)}) in {document['files']} files"
    )
    return lines


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    shape = "×".join(map(str, row["shape"])) or "scalar"
    return tuple(shape if column == "shape" else str(row[column]) for column in _COLUMNS)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    *texts, last = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join([*texts, last.strip().rjust(widths[-1])])
