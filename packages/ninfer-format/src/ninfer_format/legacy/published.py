"""From the objects of a published model to its components, bindings and uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ninfer_format.container.schema import Binding, Component, ResourceRecord, TensorRecord, Use
from ninfer_format.errors import ArtifactError
from ninfer_format.legacy.components import published_components
from ninfer_format.legacy.decoder import decoder_rows
from ninfer_format.legacy.directory import LegacyDirectory
from ninfer_format.legacy.drafts import draft_rows
from ninfer_format.legacy.geometry import DraftGeometry
from ninfer_format.legacy.identities import PublishedModel, find_published
from ninfer_format.legacy.inputs import BACKENDS, parameter_inputs
from ninfer_format.legacy.object_rows import ObjectRow
from ninfer_format.legacy.policies import format_policy, parameter_scalars, scalar_parameters
from ninfer_format.legacy.table import BindingTable
from ninfer_format.legacy.vision import vision_rows


def published_table(directory: LegacyDirectory) -> BindingTable:
    """The table of a published model.

    Args:
        directory: Its directory; version 1 files are found by their model alone.

    Raises:
        ArtifactError: `schema`: no published model, or an object of another shape; `objects`:
            objects that the model does not have, or not all that it has; `reference`: an activation scalar
            without its projection.
    """
    model = find_published(directory)
    tensors = [record for record in directory.objects if isinstance(record, TensorRecord)]
    residencies = {record.id.split("/")[0] for record in tensors}
    drafts = {name: draft for name, draft in model.drafts.items() if name in residencies}
    resources = [item.id for item in directory.objects if isinstance(item, ResourceRecord)]
    components = published_components(model.text, model.vision, drafts, resources)
    known_scalars = scalar_parameters(model.text)
    scalars = [record.id for record in tensors if record.id in known_scalars]
    weights = [record for record in tensors if record.id not in known_scalars]
    rows = _rows(model, drafts)
    bindings = _bind(weights, rows)
    _check_complete(bindings, rows, model.bindings[len(directory.objects)])
    scalar_of = parameter_scalars(scalars, model.text, bindings)
    uses = tuple(_uses(bindings, weights, scalar_of, components))
    return BindingTable(components, bindings, uses)


def _rows(model: PublishedModel, drafts: Mapping[str, DraftGeometry]) -> dict[str, ObjectRow]:
    rows = [*decoder_rows(model.text), *vision_rows(model.vision, model.text.hidden_size)]
    for component, draft in drafts.items():
        rows += draft_rows(component, draft, model.text)
    return {row.name: row for row in rows}


def _bind(tensors: list[TensorRecord], rows: Mapping[str, ObjectRow]) -> dict[str, Binding]:
    """The bindings of all tensors, in the order of the objects."""
    bindings: dict[str, Binding] = {}
    for record in tensors:
        row = rows.get(record.id)
        if row is None:
            raise ArtifactError("objects", "is no object of the model", object_id=record.id)
        _check_shape(record, row.shape)
        for parameter, binding in row.bindings.items():
            if parameter in bindings:
                raise ArtifactError(
                    "objects", f"holds {parameter!r} a second time", object_id=record.id
                )
            bindings[parameter] = binding
    return bindings


def _check_shape(record: TensorRecord, shape: tuple[int, ...]) -> None:
    if record.shape != shape:
        raise ArtifactError(
            "schema",
            "wrong shape",
            object_id=record.id,
            expected=list(shape),
            found=list(record.shape),
        )


def _check_complete(
    bindings: Mapping[str, Binding], rows: Mapping[str, ObjectRow], expected: int
) -> None:
    missing = [name for row in rows.values() for name in row.bindings if name not in bindings]
    if missing or len(bindings) != expected:
        which = f", for example {missing[0]!r} is missing" if missing else ""
        raise ArtifactError(
            "objects",
            f"wrong number of parameters in all objects{which}",
            expected=expected,
            found=len(bindings),
        )


def _uses(
    bindings: Mapping[str, Binding],
    tensors: list[TensorRecord],
    scalar_of: Mapping[str, str],
    components: Mapping[str, Component],
) -> Iterator[Use]:
    formats = {record.id: record.format for record in tensors}
    backends = [backend for backend in BACKENDS if backend in components]
    for parameter, binding in bindings.items():
        object_id = binding.object or binding.parts[0].object
        scalar = scalar_of.get(parameter)
        auxiliaries = {} if scalar is None else {"activation_input_divisor": Binding(object=scalar)}
        for place in parameter_inputs(parameter, backends):
            yield Use(parameter, place, format_policy(formats[object_id]), auxiliaries)
