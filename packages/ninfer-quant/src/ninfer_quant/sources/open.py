"""Opening a source of weights by its path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ninfer_format import SafetensorsCheckpoint
from ninfer_format.errors import CheckpointError
from ninfer_quant.sources.artifact_store import ArtifactStore
from ninfer_quant.sources.gguf_store import GgufStore
from ninfer_quant.sources.hub import download, is_hub_id
from ninfer_quant.sources.safetensors_store import SafetensorsStore
from ninfer_quant.sources.store import WeightStore
from ninfer_quant.sources.trellis_store import TrellisStore, has_logical_trellis


def locate(reference: str, *, with_weights: bool = True) -> Path:
    """The path that a reference means; a Hub id is loaded into the cache first.

    Raises:
        DownloadError: The Hub cannot be reached, or has no such checkpoint.
    """
    if is_hub_id(reference):
        return download(reference, with_weights=with_weights)
    return Path(reference).expanduser()


def open_store(path: Path, configs: Mapping[str, Mapping[str, Any]]) -> WeightStore:
    """Open weights of the kind that the path tells.

    Args:
        path: An artifact, a GGUF file, or a Safetensors file, index or folder.
        configs: Component configurations of the model to be.

    Raises:
        CheckpointError: It is damaged.
        ArtifactError: An artifact is damaged.
    """
    if path.suffix == ".ninfer":
        return ArtifactStore(path)
    if path.suffix == ".gguf":
        if "text" not in configs:
            raise CheckpointError("a GGUF file has no configuration of a component", path=path)
        vision = configs.get("vision", {})
        return GgufStore(path, configs["text"], vision.get("depth", 0))
    checkpoint = SafetensorsCheckpoint(path)
    if has_logical_trellis(checkpoint):
        return TrellisStore(checkpoint)
    return SafetensorsStore(checkpoint)
