"""Telling what kind of file is to be described."""

from __future__ import annotations

from pathlib import Path

from ninfer_format.checkpoint.gguf import GgufCheckpoint
from ninfer_format.checkpoint.gguf_header import MAGIC as GGUF_MAGIC
from ninfer_format.checkpoint.open_checkpoint import Checkpoint
from ninfer_format.checkpoint.safetensors import MAX_HEADER_BYTES, SafetensorsCheckpoint
from ninfer_format.container.artifact import Artifact
from ninfer_format.container.reader import open_artifact
from ninfer_format.container.regular_file import open_regular_file
from ninfer_format.errors import CheckpointError

Source = Artifact | Checkpoint

_INDEX_SUFFIX = ".index.json"
_FIRST_BYTES = 9


def open_source(path: Path) -> Source:
    """Open an artifact, or a checkpoint in Safetensors or GGUF.

    Folders and index files are Safetensors. What is none of these is opened as an artifact, whose
    reader says what the file begins with.

    Raises:
        ArtifactError: Not an artifact of this version, or a damaged one.
        CheckpointError: A damaged checkpoint, or a folder without one.
        OSError: The file cannot be read.
    """
    if path.is_dir():
        checkpoint = SafetensorsCheckpoint(path)
        if not checkpoint.names:
            raise CheckpointError("folder holds no tensors in .safetensors files", path=path)
        return checkpoint
    with open_regular_file(path, "framing") as file:
        first = file.read(_FIRST_BYTES)
    if first.startswith(GGUF_MAGIC):
        return GgufCheckpoint(path)
    if path.name.endswith((".safetensors", _INDEX_SUFFIX)) or _begins_like_safetensors(first):
        return SafetensorsCheckpoint(path)
    return open_artifact(path)


def kind_of(source: Source) -> str:
    """What the user calls such a file."""
    if isinstance(source, Artifact):
        return "ninfer"
    return "gguf" if isinstance(source, GgufCheckpoint) else "safetensors"


def files_of(source: Source) -> list[Path]:
    """All files that a source is read from, present or not."""
    if isinstance(source, Artifact):
        return list(source.file_paths)
    return sorted({source.info(name).file for name in source.names} | {source.path})


def _begins_like_safetensors(first: bytes) -> bool:
    length = int.from_bytes(first[:8], "little")
    return first[8:] == b"{" and length <= MAX_HEADER_BYTES
