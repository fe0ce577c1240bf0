"""The tensors of a checkpoint, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ninfer_format.checkpoint.open_checkpoint import Checkpoint
from ninfer_format.checkpoint.tensor_info import TensorInfo
from ninfer_format.inspect.aligned import aligned
from ninfer_format.inspect.selection import Selection


def tensor_lines(checkpoint: Checkpoint, selection: Selection) -> Iterator[str]:
    """One line for each tensor: offset in its file, bytes, type, shape, file and name."""
    header = ("offset", "bytes", "type", "shape", "file", "name")
    rows = [
        (
            str(tensor.offset),
            str(tensor.num_bytes),
            tensor.dtype,
            str(list(tensor.shape)),
            tensor.file.name,
            tensor.name,
        )
        for tensor in _selected(checkpoint, selection)
    ]
    return aligned(header, rows, numbers={"offset", "bytes"})


def tensor_records(checkpoint: Checkpoint, selection: Selection) -> list[dict[str, Any]]:
    """The tensors as JSON objects."""
    return [
        {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "offset": tensor.offset,
            "bytes": tensor.num_bytes,
            "file": tensor.file.name,
        }
        for tensor in _selected(checkpoint, selection)
    ]


def _selected(checkpoint: Checkpoint, selection: Selection) -> list[TensorInfo]:
    return [checkpoint.info(name) for name in checkpoint.names if name in selection]
