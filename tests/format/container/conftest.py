from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ninfer_format import Artifact, rewrite_artifact

ARTIFACT_ID = bytes(range(16))


@pytest.fixture(scope="session")
def write_files() -> Callable[..., Path]:
    """Write the files of any directory, sound or not.

    Each segment is given by its bytes, or by its length alone: then there is no such file.
    """

    def write(
        folder: Path, directory: Mapping[str, Any], first: bytes, *others: bytes | int
    ) -> Path:
        entry = folder / "x.ninfer"
        sizes = [other if isinstance(other, int) else len(other) for other in others]
        files: list[dict[str, Any]] = [{"path": None, "payload_bytes": len(first)}]
        files += [{"path": f"part {i}", "payload_bytes": n} for i, n in enumerate(sizes, 1)]
        text = json.dumps({**directory, "files": files}).encode()
        header = b"NINFER\0\3" + len(text).to_bytes(8, "little") + ARTIFACT_ID
        start = -(-(32 + len(text)) // 4096) * 4096
        entry.write_bytes((header + text).ljust(start, b"\0") + first)
        for index, other in enumerate(others, 1):
            if isinstance(other, bytes):
                header = b"NINPRT\0\3" + index.to_bytes(8, "little") + ARTIFACT_ID
                entry.with_name(f"part {index}").write_bytes(header.ljust(4096, b"\0") + other)
        return entry

    return write


@pytest.fixture(scope="session")
def split() -> Callable[..., Path]:
    """Cut an artifact into files of another length; nothing else changes."""

    def split_into(artifact: Artifact, out: Path, max_file_bytes: int, **changes: Any) -> Path:
        directory = artifact.directory
        unchanged: dict[str, Any] = {
            "payload": artifact.payload,
            "kept_bytes": artifact.payload_bytes,
            "objects": directory.objects,
            "components": directory.components,
            "bindings": directory.bindings,
            "uses": directory.uses,
            "metadata": directory.metadata,
            "provenance": directory.provenance,
        }
        return rewrite_artifact(out, max_file_bytes=max_file_bytes, **(unchanged | changes))

    return split_into
