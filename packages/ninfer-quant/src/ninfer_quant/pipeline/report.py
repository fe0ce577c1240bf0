"""The conversion report: what was made from what, how, and how well."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ninfer_format import ArtifactPlan, TensorRecord
from ninfer_quant.pipeline.conversion import Conversion, source_name
from ninfer_quant.pipeline.execute import ParameterErrors
from ninfer_quant.pipeline.prepare import WeightObject
from ninfer_quant.pipeline.verify import VerifyMode
from ninfer_quant.sources.hub import snapshot_id
from ninfer_quant.sources.named import BASE


@dataclass(frozen=True, eq=False, slots=True)
class Outcome:
    """What running a conversion gave.

    Attributes:
        output: The entry file, as the user gave it.
        plan: The artifact as it was written.
        artifact_id: Its 16 bytes.
        errors: Errors by object and parameter.
        source_hashes: SHA-256 of the files read.
        file_hashes: SHA-256 of the files written, the entry first.
        object_hashes: SHA-256 of the encoded bytes of the objects written, by id.
        directory_hash: SHA-256 of what precedes the payload in the entry.
        verify: How it was compared with its source.
        jobs: Number of workers.
        seconds: Duration of everything, planning included.
        warnings: What the user should know.
    """

    output: Path
    plan: ArtifactPlan
    artifact_id: bytes
    errors: ParameterErrors
    source_hashes: Mapping[Path, str]
    file_hashes: Mapping[Path, str]
    object_hashes: Mapping[str, str]
    directory_hash: str
    verify: VerifyMode
    jobs: int
    seconds: float
    warnings: tuple[str, ...]


def build_report(conversion: Conversion, outcome: Outcome) -> dict[str, Any]:
    """Make the report; JSON values, paths as the user gave them."""
    preparation, directory = conversion.preparation, outcome.plan.directory
    records = {record.id: record for record in directory.tensors}
    return {
        "output": str(outcome.output),
        "name": conversion.name,
        "artifact_id": outcome.artifact_id.hex(),
        "components": {
            name: component.to_json() for name, component in directory.components.items()
        },
        "provenance": dict(directory.provenance),
        "sources": _sources(conversion, outcome),
        "resource_changes": [change.message for change in conversion.resources.changes],
        "public_tokens": conversion.resources.public_tokens,
        "parameters": len(preparation.bindings),
        "uses": len(preparation.uses),
        "objects": len(directory.objects),
        "formats": dict(Counter(weight.target.format for weight in preparation.weights)),
        "methods": [_method(weight) for weight in preparation.weights],
        "shared": dict(preparation.shared),
        "statistics": _statistics(conversion, outcome.errors, records),
        "verify": outcome.verify,
        "warnings": list(outcome.warnings),
        "files": [
            {
                "path": path.name,
                "payload_bytes": segment.payload_bytes,
                "sha256": digest,
            }
            for segment, (path, digest) in zip(
                directory.files, outcome.file_hashes.items(), strict=True
            )
        ],
        "payload_bytes": directory.payload_bytes,
        "directory_sha256": outcome.directory_hash,
        "object_sha256": dict(outcome.object_hashes),
        "rows_per_chunk": conversion.request.rows_per_chunk,
        "jobs": outcome.jobs,
        "versions": versions(),
        "preparation_seconds": round(conversion.seconds, 3),
        "seconds": round(outcome.seconds, 3),
    }


def dump_report(report: Mapping[str, Any]) -> bytes:
    """Write the report as UTF-8 JSON text."""
    text = json.dumps(report, ensure_ascii=False, indent=2, allow_nan=False)
    return f"{text}\n".encode()


def versions() -> dict[str, str]:
    """Versions of what a conversion depends on."""
    packages = {name: version(name) for name in ("ninfer-quant", "ninfer-format", "ninfer-runtime")}
    return packages | {"numpy": np.__version__, "python": platform.python_version()}


def _sources(conversion: Conversion, outcome: Outcome) -> dict[str, Any]:
    request = conversion.request
    # The folder of a Hub id is a path of this machine that nobody has given.
    base = source_name(request.model) if snapshot_id(request.model) else str(request.model)
    paths = {BASE: base, **request.sources}
    stores = {
        name: {
            "path": paths[name],
            "files": {path.name: outcome.source_hashes[path] for path in store.files},
        }
        for name, store in conversion.stores.items()
    }
    recipes = [
        recipe.identity | ({} if recipe.path is None else {"path": str(recipe.path)})
        for recipe in conversion.request.recipes
    ]
    resources = {role: str(path) for role, path in conversion.resource_files.items()}
    return stores | {"recipes": recipes, "resources": resources}


def _method(weight: WeightObject) -> dict[str, Any]:
    return {
        "object": weight.target.id,
        "parameters": list(weight.request.parameter_names),
        "sources": [part.source.label for part in weight.request.inputs],
        "method": weight.method_name,
        "method_parameters": dict(weight.request.parameters),
        "format": weight.target.format,
        "layout": weight.target.layout,
        "shape": list(weight.target.shape),
    }


def _statistics(
    conversion: Conversion, errors: ParameterErrors, records: Mapping[str, TensorRecord]
) -> list[dict[str, Any]]:
    statistics = []
    for weight in conversion.preparation.weights:
        record = records[weight.target.id]
        for selection in weight.selections:
            sums = errors[record.id, selection.parameter]
            statistics.append(
                {
                    "parameter": selection.parameter,
                    "rows": None if selection.rows is None else list(selection.rows),
                    "object": record.id,
                    "method": weight.method_name,
                    "format": record.format,
                    "layout": record.layout,
                    "bits_per_weight": 8 * record.num_bytes / record.elements,
                    "relative_frobenius": sums.relative_frobenius,
                    "sqnr_db": sums.sqnr_db,
                    "max_abs_error": sums.max_error,
                }
            )
    return statistics
