"""One side of a comparison: an artifact or a checkpoint, as parameters with values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from ninfer_format import Artifact, Component, SafetensorsCheckpoint, TensorRecord
from ninfer_format.errors import CheckpointError, UnsupportedConfigError
from ninfer_quant.recipes.model import Model
from ninfer_quant.sources.artifact_store import ArtifactStore
from ninfer_quant.sources.checkpoint import architecture_of, build_model, component_configs
from ninfer_quant.sources.logical import LogicalSource, reshape
from ninfer_quant.sources.safetensors_store import SafetensorsStore
from ninfer_quant.sources.store import AbsentSource

_OPTIONAL = ("vision", "mtp")
"""Components that a checkpoint may have beside its text."""


@dataclass(frozen=True, eq=False, slots=True)
class ComparedParameter:
    """One parameter of one side.

    Attributes:
        source: Its values.
        format: Numeric format, or the dtype of a checkpoint's tensor; several are joined by ``+``.
        bits_per_weight: What its elements take, padding and scales included; None where a
            checkpoint's own encoding does not say.
    """

    source: LogicalSource
    format: str
    bits_per_weight: float | None

    def rows(self) -> LogicalSource:
        """The values as a matrix, of one row if there are no rows."""
        shape = self.source.shape
        if len(shape) == 2:
            return self.source
        return reshape(self.source, (prod(shape[:-1]), shape[-1]) if shape else (1, 1))


@dataclass(frozen=True, eq=False, slots=True)
class ComparedModel:
    """One side.

    Attributes:
        path: What was opened.
        parameters: By logical name.
    """

    path: Path
    parameters: dict[str, ComparedParameter]


def open_compared(path: Path) -> ComparedModel:
    """Open an artifact, or else a checkpoint folder.

    Raises:
        ArtifactError: The artifact is damaged.
        CheckpointError: The checkpoint is damaged or not understood.
        UnsupportedConfigError: Its architecture is not implemented.
    """
    if path.is_dir():
        return ComparedModel(path, _checkpoint_parameters(path))
    store = ArtifactStore(path)
    artifact = store.artifact
    records = {record.id: record for record in artifact.directory.tensors}
    names = artifact.directory.bindings
    return ComparedModel(path, {name: _stored(store, artifact, records, name) for name in names})


def _stored(
    store: ArtifactStore, artifact: Artifact, records: dict[str, TensorRecord], name: str
) -> ComparedParameter:
    parts = artifact.parts(name)
    elements = sum(part.end - part.begin for part in parts)
    bits = 0.0
    for part in parts:
        record = records[part.object]
        bits += 8 * record.num_bytes * (part.end - part.begin) / record.elements
    formats = dict.fromkeys(records[part.object].format for part in parts)
    shape = _shape([records[part.object] for part in parts], elements)
    return ComparedParameter(store.parameter(name, shape), "+".join(formats), bits / elements)


def _shape(records: list[TensorRecord], elements: int) -> tuple[int, ...]:
    """Rows of the width that the objects have, if they have one."""
    first = records[0]
    if len(records) == 1 and first.elements == elements:
        return first.shape
    widths = {record.shape[-1] for record in records if len(record.shape) > 1}
    width = widths.pop() if len(widths) == 1 else elements
    return (elements // width, width) if elements % width == 0 else (elements,)


def _checkpoint_parameters(folder: Path) -> dict[str, ComparedParameter]:
    return {
        name: ComparedParameter(source, _format(source), _bits(source))
        for name, source in _checkpoint_sources(_checkpoint_model(folder))
    }


def _checkpoint_sources(model: Model) -> Iterable[tuple[str, LogicalSource]]:
    for name, parameter in model.parameters.items():
        if not isinstance(parameter.source, AbsentSource):
            yield name, parameter.source


def _checkpoint_model(folder: Path) -> Model:
    store = SafetensorsStore(SafetensorsCheckpoint(folder))
    architecture = architecture_of(store)
    names = ["text"]
    for name in _OPTIONAL:
        try:
            component_configs(store, architecture, [*names, name], {})
        except (CheckpointError, UnsupportedConfigError):
            continue  # The checkpoint is compared without it.
        names.append(name)
    configs = component_configs(store, architecture, names, {})
    components = {
        name: Component(config, target=None if name == "text" else "text")
        for name, config in configs.items()
    }
    return build_model(store, architecture, components, {})


def _format(source: LogicalSource) -> str:
    return source.dtype.name if source.encoded is None else source.encoded.format


def _bits(source: LogicalSource) -> float | None:
    return 8.0 * source.dtype.itemsize if source.encoded is None else None
