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
                codec = codec_for(spec.format, spec.layout)
                writer.write(spec.id, 0, codec.encode((words or {})[spec.id], spec.shape))
        return tmp_path / name

    return write


@pytest.fixture
def two_part_artifact(write_artifact: WriteArtifact) -> Path:
    """8192 int32 counting up, cut into two files after the first 4096 bytes of payload."""
    spec = TensorSpec("w", (8192,), "int32", "contiguous_le_v1")
    words = {"w": np.arange(8192, dtype=np.int32)}
    return write_artifact([spec], words, max_file_bytes=4096 + 4096 * 7)
