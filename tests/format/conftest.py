from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer_format import (
    ArtifactWriter,
    Binding,
    Component,
    ResourceSpec,
    TensorSpec,
    codec_for,
    plan_artifact,
)

WriteArtifact = Callable[..., Path]


@pytest.fixture(scope="session")
def data() -> Path:
    return Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def conformance(data: Path) -> Path:
    return data / "conformance"


@pytest.fixture
def write_artifact(tmp_path: Path) -> WriteArtifact:
    """Write an artifact from specs and words; every tensor is bound as ``text/<id>``."""

    def write(
        specs: Sequence[TensorSpec | ResourceSpec],
        words: Mapping[str, Any] | None = None,
        *,
        name: str = "model.ninfer",
        **plan_arguments: Any,
    ) -> Path:
        tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
        arguments: dict[str, Any] = {
            "components": {"text": Component({})},
            "bindings": {f"text/{spec.id}": Binding(object=spec.id) for spec in tensors},
        }
        plan = plan_artifact(specs, **(arguments | plan_arguments))
        with ArtifactWriter(tmp_path / name, plan) as writer:
            for spec in tensors:
                codec = codec_for(spec.format, spec.layout, spec.shape)
                writer.write(spec.id, 0, codec.encode((words or {})[spec.id]))
        return tmp_path / name

    return write


@pytest.fixture
def two_part_artifact(write_artifact: WriteArtifact) -> Path:
    """8192 int32 counting up, cut into two files after the first 4096 bytes of payload."""
    spec = TensorSpec("w", (8192,), "int32", "contiguous_le_v1")
    words = {"w": np.arange(8192, dtype=np.int32)}
    return write_artifact([spec], words, max_file_bytes=4096 + 4096 * 7)


@pytest.fixture
def write_sparse(tmp_path: Path) -> WriteArtifact:
    """Write an artifact whose tensors are all zero, without writing the zeros."""

    def write(specs: Sequence[TensorSpec], **plan_arguments: Any) -> Path:
        arguments: dict[str, Any] = {
            "components": {"text": Component({})},
            "bindings": {f"text/{spec.id}": Binding(object=spec.id) for spec in specs},
        }
        plan = plan_artifact(specs, **(arguments | plan_arguments))
        writer = ArtifactWriter(tmp_path / "sparse.ninfer", plan)
        plan = writer.plan
        header = b"NINFER\0\3" + len(plan.json_bytes).to_bytes(8, "little") + writer.artifact_id
        for index, path in enumerate(writer.file_paths):
            if index:
                header = b"NINPRT\0\3" + index.to_bytes(8, "little") + writer.artifact_id
            text = b"" if index else plan.json_bytes
            path.write_bytes(header + text)
            start = 4096 if index else plan.entry_payload_start
            with path.open("r+b") as file:
                file.truncate(start + plan.segments[index])
        return writer.path

    return write
