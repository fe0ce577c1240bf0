"""The `.ninfer` format: container, codecs, reference encoders and checkpoint readers.

The names below are the public interface. They are imported on first use, so that a command which
only needs an error class or its options does not wait for NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_format.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ninfer_format.checkpoint.safetensors import SafetensorsCheckpoint, TensorInfo
    from ninfer_format.codecs import check_encoding, codec_for
    from ninfer_format.codecs.base import Codec, Geometry, Plane
    from ninfer_format.codecs.groupwise_int import GroupedWords
    from ninfer_format.container.plan import (
        ArtifactPlan,
        ResourceSpec,
        TensorSpec,
        plan_artifact,
    )
    from ninfer_format.container.reader import Artifact, open_artifact
    from ninfer_format.container.schema import (
        Binding,
        Component,
        Directory,
        FileSegment,
        ObjectRecord,
        Part,
        Proposal,
        ResourceRecord,
        TensorRecord,
        Use,
    )
    from ninfer_format.container.writer import ArtifactWriter
    from ninfer_format.dtypes import get_format
    from ninfer_format.encoders.cast_direct import cast_direct
    from ninfer_format.encoders.grouped_absmax import grouped_absmax
    from ninfer_format.errors import (
        ArtifactError,
        CheckpointError,
        ExitCode,
        NInferError,
        UnsupportedConfigError,
        UsageError,
    )
    from ninfer_format.layouts import get_layout

_MODULES = {
    "checkpoint.safetensors": ("SafetensorsCheckpoint", "TensorInfo"),
    "codecs": ("check_encoding", "codec_for"),
    "codecs.base": ("Codec", "Geometry", "Plane"),
    "codecs.groupwise_int": ("GroupedWords",),
    "container.plan": ("ArtifactPlan", "ResourceSpec", "TensorSpec", "plan_artifact"),
    "container.reader": ("Artifact", "open_artifact"),
    "container.schema": (
        "Binding",
        "Component",
        "Directory",
        "FileSegment",
        "ObjectRecord",
        "Part",
        "Proposal",
        "ResourceRecord",
        "TensorRecord",
        "Use",
    ),
    "container.writer": ("ArtifactWriter",),
    "dtypes": ("get_format",),
    "encoders.cast_direct": ("cast_direct",),
    "encoders.grouped_absmax": ("grouped_absmax",),
    "errors": (
        "ArtifactError",
        "CheckpointError",
        "ExitCode",
        "NInferError",
        "UnsupportedConfigError",
        "UsageError",
    ),
    "layouts": ("get_layout",),
}

__all__ = [
    "Artifact",
    "ArtifactError",
    "ArtifactPlan",
    "ArtifactWriter",
    "Binding",
    "CheckpointError",
    "Codec",
    "Component",
    "Directory",
    "ExitCode",
    "FileSegment",
    "Geometry",
    "GroupedWords",
    "NInferError",
    "ObjectRecord",
    "Part",
    "Plane",
    "Proposal",
    "ResourceRecord",
    "ResourceSpec",
    "SafetensorsCheckpoint",
    "TensorInfo",
    "TensorRecord",
    "TensorSpec",
    "UnsupportedConfigError",
    "UsageError",
    "Use",
    "cast_direct",
    "check_encoding",
    "codec_for",
    "get_format",
    "get_layout",
    "grouped_absmax",
    "open_artifact",
    "plan_artifact",
]

__getattr__ = lazy_exports(__name__, _MODULES)
