"""The hashes in the report that ninfer-convert writes beside an artifact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer_format.container.framing import MAX_JSON_BYTES
from ninfer_format.container.json_text import parse_json
from ninfer_format.container.regular_file import open_regular_file
from ninfer_format.errors import ArtifactError

REPORT_SUFFIX = ".conversion.json"
MAX_MEMORY = 500_000_000
"""Most memory that reading a report may take; one of 100,000 parameters takes half of it."""
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """What a report says about the bytes of its artifact; SHA-256 as 64 hex digits.

    Attributes:
        path: The report.
        artifact_id: Hex digits of the artifact that it is about, None if it does not say.
        files: Hashes of all files, the entry first; empty if it has none.
        objects: Hashes of the encoded bytes of objects, by id; empty if it has none.
        directory: Hash of what precedes the payload in the entry, None if it has none.
    """

    path: Path
    artifact_id: str | None
    files: tuple[str, ...]
    objects: Mapping[str, str]
    directory: str | None


def report_path(artifact: Path) -> Path:
    """Where the report of an artifact lies."""
    return artifact.with_name(artifact.name + REPORT_SUFFIX)


def read_report(artifact: Path) -> ConversionReport | None:
    """Read the report beside an artifact; None if there is none.

    Raises:
        ArtifactError: `json` or `schema`: the report is damaged.
        OSError: It cannot be read.
    """
    path = report_path(artifact)
    try:
        with open_regular_file(path, "json") as file:
            text = file.read(MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(text) > MAX_JSON_BYTES:
        raise ArtifactError("json", f"report is longer than {MAX_JSON_BYTES} bytes")
    root = parse_json(text, what="report", max_bytes=MAX_MEMORY)
    if not isinstance(root, dict):
        raise ArtifactError("schema", "report is not a JSON object")
    artifact_id = root.get("artifact_id")
    directory = root.get("directory_sha256")
    return ConversionReport(
        path,
        artifact_id if isinstance(artifact_id, str) else None,
        _file_hashes(root.get("files", [])),
        _object_hashes(root.get("object_sha256", {})),
        None if directory is None else _digest(directory),
    )


def _file_hashes(value: Any) -> tuple[str, ...]:
    # Reports of other converters need not have the same shape; they then have no hashes for us.
    files = value if isinstance(value, list) else []
    return tuple(_digest(f["sha256"]) for f in files if isinstance(f, dict) and "sha256" in f)


def _object_hashes(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ArtifactError("schema", "object_sha256 of the report is not an object")
    return {name: _digest(digest) for name, digest in value.items()}


def _digest(value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ArtifactError("schema", f"report holds {value!r} where a SHA-256 belongs")
    return value
