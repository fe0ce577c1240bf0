"""The `.ninfer` format: container, codecs, reference encoders and checkpoint readers.

The names below are the public interface. They are imported on first use, so that a command which
only needs an error class or its options does not wait for NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_format.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ninfer_format.checkpoint.gguf import GgufCheckpoint
    from ninfer_format.checkpoint.safetensors import SafetensorsCheckpoint
    from ninfer_format.checkpoint.tensor_info import TensorInfo
    from ninfer_format.codecs import check_encoding, codec_for, codec_of
    from ninfer_format.codecs.base import Codec, RowSlice
    from ninfer_format.codecs.exl3 import Exl3Words, exl3_values
    from ninfer_format.codecs.fp8_row import Fp8RowWords
    from ninfer_format.codecs.geometry import Geometry, Piece, Plane, Span
    from ninfer_format.codecs.grouped_words import GroupedWords
    from ninfer_format.codecs.nvfp4 import Nvfp4Words
    from ninfer_format.container.artifact import Artifact
    from ninfer_format.container.plan import (
        ArtifactPlan,
        ResourceSpec,
        TensorSpec,
        plan_artifact,
    )
    from ninfer_format.container.reader import open_artifact
    from ninfer_format.container.rewrite import Addition, PayloadSource, rewrite_artifact
    from ninfer_format.container.row_writer import RowWriter
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
    from ninfer_format.edit.activation_policy import set_activation_policy
    from ninfer_format.edit.attach import attach_component
    from ninfer_format.edit.name import rename_artifact
    from ninfer_format.edit.resource import replace_resource
    from ninfer_format.edit.split import split_artifact
    from ninfer_format.encoders.cast_direct import cast_direct
    from ninfer_format.encoders.fp8_row_maxabs import fp8_row_maxabs
    from ninfer_format.encoders.grouped_absmax import grouped_absmax
    from ninfer_format.encoders.nvfp4_absmax import nvfp4_absmax
    from ninfer_format.encoders.q4_rows_maxabs import q4_rows_maxabs
    from ninfer_format.errors import (
        ArtifactError,
        CheckpointError,
        ExitCode,
        NInferError,
        UnsupportedConfigError,
        UsageError,
    )
    from ninfer_format.layouts import get_layout
    from ninfer_format.legacy.directory import LegacyDirectory
    from ninfer_format.legacy.published import published_table
    from ninfer_format.legacy.reader import LegacyArtifact, open_legacy
    from ninfer_format.legacy.table import BindingTable, parse_table
    from ninfer_format.legacy.upgrade import upgrade_artifact

_MODULES = {
    "checkpoint.gguf": ("GgufCheckpoint",),
    "checkpoint.safetensors": ("SafetensorsCheckpoint",),
    "checkpoint.tensor_info": ("TensorInfo",),
    "codecs": ("check_encoding", "codec_for", "codec_of"),
    "codecs.base": ("Codec", "RowSlice"),
    "codecs.exl3": ("Exl3Words", "exl3_values"),
    "codecs.fp8_row": ("Fp8RowWords",),
    "codecs.geometry": ("Geometry", "Piece", "Plane", "Span"),
    "codecs.grouped_words": ("GroupedWords",),
    "codecs.nvfp4": ("Nvfp4Words",),
    "container.artifact": ("Artifact",),
    "container.plan": ("ArtifactPlan", "ResourceSpec", "TensorSpec", "plan_artifact"),
    "container.reader": ("open_artifact",),
    "container.rewrite": ("Addition", "PayloadSource", "rewrite_artifact"),
    "container.row_writer": ("RowWriter",),
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
    "edit.activation_policy": ("set_activation_policy",),
    "edit.attach": ("attach_component",),
    "edit.name": ("rename_artifact",),
    "edit.resource": ("replace_resource",),
    "edit.split": ("split_artifact",),
    "encoders.cast_direct": ("cast_direct",),
    "encoders.fp8_row_maxabs": ("fp8_row_maxabs",),
    "encoders.grouped_absmax": ("grouped_absmax",),
    "encoders.nvfp4_absmax": ("nvfp4_absmax",),
    "encoders.q4_rows_maxabs": ("q4_rows_maxabs",),
    "errors": (
        "ArtifactError",
        "CheckpointError",
        "ExitCode",
        "NInferError",
        "UnsupportedConfigError",
        "UsageError",
    ),
    "layouts": ("get_layout",),
    "legacy.directory": ("LegacyDirectory",),
    "legacy.published": ("published_table",),
    "legacy.reader": ("LegacyArtifact", "open_legacy"),
    "legacy.table": ("BindingTable", "parse_table"),
    "legacy.upgrade": ("upgrade_artifact",),
}

__all__ = [
    "Addition",
    "Artifact",
    "ArtifactError",
    "ArtifactPlan",
    "ArtifactWriter",
    "Binding",
    "BindingTable",
    "CheckpointError",
    "Codec",
    "Component",
    "Directory",
    "ExitCode",
    "Exl3Words",
    "FileSegment",
    "Fp8RowWords",
    "Geometry",
    "GgufCheckpoint",
    "GroupedWords",
    "LegacyArtifact",
    "LegacyDirectory",
    "NInferError",
    "Nvfp4Words",
    "ObjectRecord",
    "Part",
    "PayloadSource",
    "Piece",
    "Plane",
    "Proposal",
    "ResourceRecord",
    "ResourceSpec",
    "RowSlice",
    "RowWriter",
    "SafetensorsCheckpoint",
    "Span",
    "TensorInfo",
    "TensorRecord",
    "TensorSpec",
    "UnsupportedConfigError",
    "UsageError",
    "Use",
    "attach_component",
    "cast_direct",
    "check_encoding",
    "codec_for",
    "codec_of",
    "exl3_values",
    "fp8_row_maxabs",
    "get_format",
    "get_layout",
    "grouped_absmax",
    "nvfp4_absmax",
    "open_artifact",
    "open_legacy",
    "parse_table",
    "plan_artifact",
    "published_table",
    "q4_rows_maxabs",
    "rename_artifact",
    "replace_resource",
    "rewrite_artifact",
    "set_activation_policy",
    "split_artifact",
    "upgrade_artifact",
]

__getattr__ = lazy_exports(__name__, _MODULES)
