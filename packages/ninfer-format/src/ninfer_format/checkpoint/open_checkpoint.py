"""Opening a checkpoint of any kind."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ninfer_format.checkpoint.gguf import GgufCheckpoint
from ninfer_format.checkpoint.gguf_header import MAGIC
from ninfer_format.checkpoint.safetensors import SafetensorsCheckpoint

Checkpoint = SafetensorsCheckpoint | GgufCheckpoint


def open_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Open a GGUF file, which its first bytes tell, or anything of Safetensors.

    Raises:
        CheckpointError: The checkpoint is damaged or not supported.
        OSError: It cannot be read.
    """
    path = Path(path)
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                return GgufCheckpoint(path)
    return SafetensorsCheckpoint(path)
