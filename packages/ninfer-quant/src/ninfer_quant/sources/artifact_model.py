"""An artifact as a model: what it holds, without asking any architecture."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ninfer_format import Artifact, TensorRecord, get_format
from ninfer_format.dtypes import DirectFormat
from ninfer_quant.errors import ConversionError
from ninfer_quant.recipes.model import Model, Parameter
from ninfer_quant.sources.artifact_store import ArtifactStore


def artifact_model(store: ArtifactStore) -> Model:
    """The parameters of an artifact in the order of their objects, with the uses that they have.

    Raises:
        ConversionError: A parameter lies in several objects, which cannot be told from here.
    """
    artifact = store.artifact
    inputs: dict[str, list[str]] = {}
    for use in artifact.directory.uses:
        inputs.setdefault(use.parameter, []).append(use.input)
    return Model(
        artifact.directory.components,
        (
            Parameter(
                name,
                shape,
                store.parameter(name, shape),
                tuple(inputs.get(name, ())),
                record.format if isinstance(get_format(record.format), DirectFormat) else "bf16",
            )
            for name, shape, record in _stored_parameters(artifact)
        ),
    )


def _stored_parameters(artifact: Artifact) -> Iterator[tuple[str, tuple[int, ...], TensorRecord]]:
    records = {record.id: record for record in artifact.directory.tensors}
    order = {object_id: index for index, object_id in enumerate(records)}
    found = []
    for name in artifact.directory.bindings:
        parts = artifact.parts(name)
        if len(parts) != 1:
            raise ConversionError(
                f"parameter {name} lies in {len(parts)} objects; only whole ones can be "
                "quantized anew",
                path=artifact.path,
                hint="convert the checkpoint again",
            )
        found.append((order[parts[0].object], parts[0].begin, name, parts[0]))
    for _, _, name, part in sorted(found, key=lambda item: item[:3]):
        record = records[part.object]
        yield name, _shape(record, part.begin, part.end), record


def _shape(record: TensorRecord, begin: int, end: int) -> tuple[int, ...]:
    """The shape of some elements of an object: whole rows if they are, else flat."""
    if (begin, end) == (0, record.elements):
        return record.shape
    width = prod(record.shape[1:])
    if len(record.shape) > 1 and begin % width == end % width == 0:
        return ((end - begin) // width, *record.shape[1:])
    return (end - begin,)
