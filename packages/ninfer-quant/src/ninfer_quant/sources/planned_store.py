"""A checkpoint of which only the configuration, and perhaps the index, is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ninfer_format.checkpoint.safetensors import INDEX_NAME
from ninfer_format.errors import CheckpointError
from ninfer_quant.sources.logical import LogicalSource
from ninfer_quant.sources.safetensors_store import CONFIG_NAME
from ninfer_quant.sources.store import TensorStore


class PlannedStore(TensorStore):
    """Names without weights, good for a plan.

    Args:
        path: The folder.

    Attributes:
        has_names: Whether an index says which tensors there are; without it, all that are asked
            for are taken to be there.
    """

    def __init__(self, path: Path) -> None:
        config = _read_object(path / CONFIG_NAME)
        index = path / INDEX_NAME
        names: tuple[str, ...] = ()
        if index.exists():
            names = tuple(sorted(_read_object(index).get("weight_map", {})))
        files = tuple(file for file in (path / CONFIG_NAME, index) if file.exists())
        super().__init__(path, config=config, stored_names=names, files=files)
        self.names = frozenset(names)
        self.has_names = bool(names)

    def tensor(self, name: str) -> LogicalSource:
        """Refuse, because there are no weights."""
        raise CheckpointError(
            f"tensor {name!r} cannot be read: the folder has no weights",
            path=self.path,
            tensors=(name,),
        )

    def missing_parts(self, name: str) -> tuple[str, ...]:
        """The tensor, if there is an index that lacks it; see `TensorStore`."""
        return super().missing_parts(name) if self.has_names else ()


def has_no_weights(path: Path) -> bool:
    """Whether a folder has no Safetensors file, though it may have an index of some."""
    return path.is_dir() and not any(path.glob("*.safetensors"))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError as error:
        raise CheckpointError(f"file does not hold JSON: {error}", path=path) from error
    if not isinstance(value, dict):
        raise CheckpointError("file does not hold a JSON object", path=path)
    return value
