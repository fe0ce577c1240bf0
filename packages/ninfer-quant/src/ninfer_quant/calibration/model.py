"""The model that is calibrated: an artifact or a checkpoint, one layer at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ninfer_format import Artifact, Component, SafetensorsCheckpoint, open_artifact
from ninfer_quant.recipes.model import Model
from ninfer_quant.resources.collect import locate_resources, read_resources
from ninfer_quant.sources.checkpoint import architecture_of, build_model, component_configs
from ninfer_quant.sources.safetensors_store import SafetensorsStore
from ninfer_quant.sources.store import AbsentSource
from ninfer_runtime.device import get_device
from ninfer_runtime.models.architecture import LayeredText, LogicalParameter
from ninfer_runtime.models.parameter_source import ArtifactParameters
from ninfer_runtime.models.registry import find_architecture
from ninfer_runtime.text.frontend import Frontend

_COMPONENTS = ("text", "mtp")
"""What the configuration of the text model may depend on."""


@dataclass(frozen=True, eq=False, slots=True)
class CalibratedModel:
    """A model that is ready to read a corpus.

    Attributes:
        name: What it is called.
        identity: Tells it from other models: the id of an artifact, or a hash over the names, sizes
            and times of a checkpoint's files.
        text: Its layers.
        frontend: Its text side.
        max_tokens: Longest row that it was made for.
        inputs: Widths of the inputs of all its projections, by name.
    """

    name: str
    identity: str
    text: LayeredText
    frontend: Frontend
    max_tokens: int
    inputs: Mapping[str, int]


@contextmanager
def open_model(path: Path) -> Iterator[CalibratedModel]:
    """Open an artifact, or a checkpoint folder, for calibration on the CPU.

    Raises:
        ArtifactError: The artifact is damaged.
        CheckpointError: The checkpoint is damaged or incomplete.
        UnsupportedConfigError: The architecture is not implemented.
        ConversionError: A resource of a checkpoint is not what the runtime can use.
    """
    if path.is_dir():
        yield _open_checkpoint(path)
        return
    with open_artifact(path) as artifact:
        yield _open_artifact(artifact)


def _open_artifact(artifact: Artifact) -> CalibratedModel:
    components = artifact.directory.components
    configs = {name: components[name].config for name in _COMPONENTS if name in components}
    architecture = find_architecture(_architecture_name(configs["text"]["architectures"]))
    parameters = architecture.parameters(configs)
    source = ArtifactParameters(artifact, parameters)
    return CalibratedModel(
        artifact.name or artifact.path.stem,
        artifact.artifact_id.hex(),
        architecture.layered(configs, source, get_device("cpu")),
        Frontend.from_artifact(artifact),
        configs["text"]["max_position_embeddings"],
        _input_widths(parameters),
    )


def _architecture_name(names: object) -> str:
    return str(names[0]) if isinstance(names, list | tuple) and len(names) == 1 else str(names)


def _open_checkpoint(folder: Path) -> CalibratedModel:
    store = SafetensorsStore(SafetensorsCheckpoint(folder))
    architecture = architecture_of(store)
    configs = component_configs(store, architecture, ("text",), {})
    model = build_model(store, architecture, {"text": Component(configs["text"])}, {})
    located = locate_resources(folder, architecture, ("text",), {})
    resources = read_resources(located, configs)
    return CalibratedModel(
        folder.resolve().name,
        _identity(store.files),
        architecture.layered(configs, _CheckpointParameters(model), get_device("cpu")),
        Frontend(resources.data["text"], is_moe="num_experts" in configs["text"]),
        configs["text"]["max_position_embeddings"],
        _input_widths(architecture.parameters(configs)),
    )


def _input_widths(parameters: Iterable[LogicalParameter]) -> dict[str, int]:
    return {
        name: parameter.shape[-1]
        for parameter in parameters
        if parameter.residency == "text"
        for name in parameter.inputs
    }


def _identity(paths: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


class _CheckpointParameters:
    """Implements `ninfer_runtime.models.parameter_source.ParameterSource`."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def read(self, parameter: LogicalParameter) -> np.ndarray:
        source = self._model.parameters[parameter.name].source
        values = source.read_values(0, source.num_elements)
        return np.array(values, np.float32, order="C").reshape(parameter.shape)

    def is_shared(self, name: str, other: str) -> bool:
        first, second = (self._model.parameters[item].source for item in (name, other))
        return first.tensors == second.tensors and not isinstance(first, AbsentSource)
