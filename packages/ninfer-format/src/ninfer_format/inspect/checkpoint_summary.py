"""The numbers that describe a checkpoint in Safetensors or GGUF; only headers are looked at."""

from __future__ import annotations

from typing import Any

from ninfer_format.checkpoint.gguf import GgufCheckpoint
from ninfer_format.checkpoint.open_checkpoint import Checkpoint
from ninfer_format.inspect.json_values import json_value
from ninfer_format.inspect.shares import add_up, total
from ninfer_format.inspect.source import kind_of
from ninfer_format.inspect.summary import architecture

_INTEGER_TYPES = frozenset({"BOOL", "I16", "I32", "I64", "U16", "U32", "U64"})
"""Types of tables and indices; bytes are left out, because packed weights are stored in them."""


def checkpoint_document(path: str, checkpoint: Checkpoint) -> dict[str, Any]:
    """The summary of a checkpoint as a JSON object; members as far as those of an artifact apply.

    Args:
        path: The file as the user wrote it.
        checkpoint: The open checkpoint.
    """
    tensors = [checkpoint.info(name) for name in checkpoint.names]
    formats = add_up((tensor.dtype, tensor.elements, tensor.num_bytes) for tensor in tensors)
    weights = total(share for name, share in formats.items() if name not in _INTEGER_TYPES)
    files = {tensor.file for tensor in tensors} or {checkpoint.path}
    whole = checkpoint.total_bytes
    return {
        "path": path,
        "kind": kind_of(checkpoint),
        "version": checkpoint.version if isinstance(checkpoint, GgufCheckpoint) else None,
        "name": _said(checkpoint, "general.name"),
        "architecture": _architecture(checkpoint),
        "files": len(files),
        "file_bytes": sum(file.stat().st_size for file in files),
        "payload_bytes": whole,
        "tensors": len(tensors),
        "parameters": weights.elements,
        "bits_per_weight": round(weights.bits_per_element, 4),
        "formats": {name: share.to_json(whole) for name, share in formats.items()},
    }


def checkpoint_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a checkpoint says about its model, as JSON values."""
    config = {} if isinstance(checkpoint, GgufCheckpoint) else {"config": checkpoint.config}
    return config | {"metadata": json_value(checkpoint.metadata)}


def _architecture(checkpoint: Checkpoint) -> str | None:
    if isinstance(checkpoint, GgufCheckpoint):
        return _said(checkpoint, "general.architecture")
    return architecture(checkpoint.config)


def _said(checkpoint: Checkpoint, key: str) -> str | None:
    value = checkpoint.metadata.get(key)
    return value if isinstance(value, str) else None
