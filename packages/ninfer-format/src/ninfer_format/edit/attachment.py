"""What attaching a component of one artifact to another comes to; nothing is written here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.plan import ResourceSpec, TensorSpec
from ninfer_format.container.rewrite import Addition
from ninfer_format.container.schema import (
    Binding,
    Component,
    Directory,
    ObjectRecord,
    ResourceRecord,
    Use,
)
from ninfer_format.edit.head_uses import head_uses
from ninfer_format.edit.object_ids import free_id
from ninfer_format.errors import ArtifactError

TOKENIZER_ROLE = "tokenizer.json"
OPERATION = "encoded-byte-copy"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A component on its way from one artifact to another.

    Attributes:
        base: The artifact that gets it.
        donor: The artifact that has it.
        component: Its id.
        ids: Id in the new artifact of each object that is copied, by its id in the donor.
        directory: The new directory, without the copied objects.
    """

    base: Artifact
    donor: Artifact
    component: str
    ids: Mapping[str, str]
    directory: Directory

    @property
    def additions(self) -> list[Addition]:
        """The objects to copy, under their new ids."""
        return [_addition(self.donor, self.donor.record(old), new) for old, new in self.ids.items()]

    @property
    def copied_bytes(self) -> int:
        """Bytes of the objects that come from the donor."""
        return sum(self.donor.record(object_id).num_bytes for object_id in self.ids)

    @property
    def work_bytes(self) -> int:
        """How much `attach_component` counts: bytes copied, and hashed in both places."""
        kept = sum(record.num_bytes for record in self.base.directory.objects)
        return self.base.payload_bytes + self.copied_bytes + 2 * (kept + self.copied_bytes)


def plan_attachment(base: Artifact, donor: Artifact, component: str) -> Attachment:
    """Check that a component fits, and say how the new artifact looks.

    Args:
        base: The artifact that gets the component.
        donor: The artifact that has it.
        component: Its id, for example ``dflash2``.

    Raises:
        ArtifactError: `reference`: the component is missing in the donor or present in the base,
            does not serve the text component, or is for another model; an output head does not
            fit or its policy is not clear; `part` or `encoding`: a tokenizer cannot be read.
        OSError: A file cannot be read.
    """
    _check_component(base, donor, component)
    _check_same_model(base, donor)
    source = donor.directory
    bindings = {
        name: binding
        for name, binding in source.bindings.items()
        if name.startswith(f"{component}/")
    }
    for name in bindings:
        if name in base.directory.bindings:
            raise ArtifactError("reference", f"has {name!r} already", path=base.path)
    uses = [use for use in source.uses if use.parameter in bindings]
    component_record = source.components[component]
    ids = _new_ids(base, donor, component, _objects_of(component_record, bindings, uses))
    directory = replace(
        base.directory,
        components={**base.directory.components, component: _renamed(component_record, ids)},
        bindings={
            **base.directory.bindings,
            **{name: _rebound(binding, ids) for name, binding in bindings.items()},
        },
        uses=(
            *base.directory.uses,
            *(_reused(use, ids) for use in uses),
            *head_uses(base, donor, component),
        ),
        provenance=_provenance(base, donor, component),
    )
    return Attachment(base, donor, component, ids, directory)


# --- conditions ------------------------------------------------------------------------------


def _check_component(base: Artifact, donor: Artifact, component: str) -> None:
    if component in base.directory.components:
        raise ArtifactError("reference", f"has component {component!r} already", path=base.path)
    found = donor.directory.components.get(component)
    if found is None:
        raise ArtifactError(
            "reference",
            f"has no component {component!r}",
            path=donor.path,
            expected=f"one of {', '.join(donor.directory.components)}",
            found=component,
        )
    if found.target != "text":
        raise ArtifactError(
            "reference",
            f"component {component!r} does not serve the text component",
            path=donor.path,
            expected="target 'text'",
            found=repr(found.target),
        )


def _check_same_model(base: Artifact, donor: Artifact) -> None:
    """Both must be the same model with the same tokens, whatever formats their weights have."""
    configs = [artifact.directory.components["text"].config for artifact in (base, donor)]
    if configs[0] != configs[1]:
        keys = {key for config in configs for key in config}
        different = sorted(key for key in keys if configs[0].get(key) != configs[1].get(key))
        raise ArtifactError(
            "reference",
            f"text component differs from that of {base.path} in config {', '.join(different)}",
            path=donor.path,
        )
    if base.resource("text", TOKENIZER_ROLE) != donor.resource("text", TOKENIZER_ROLE):
        raise ArtifactError(
            "reference", f"{TOKENIZER_ROLE} differs from that of {base.path}", path=donor.path
        )


# --- what is copied --------------------------------------------------------------------------


def _objects_of(component: Component, bindings: Mapping[str, Binding], uses: list[Use]) -> set[str]:
    """Ids of all objects that a component needs."""
    auxiliaries = [binding for use in uses for binding in use.auxiliaries.values()]
    return {
        *component.resources.values(),
        *(name for binding in (*bindings.values(), *auxiliaries) for name in _objects_in(binding)),
    }


def _objects_in(binding: Binding) -> Iterator[str]:
    if binding.object is not None:
        yield binding.object
    for part in binding.parts:
        yield part.object


def _new_ids(base: Artifact, donor: Artifact, component: str, needed: set[str]) -> dict[str, str]:
    """The id that each object gets, in the donor's payload order."""
    taken = {record.id for record in base.directory.objects}
    ids: dict[str, str] = {}
    for record in donor.directory.objects:
        if record.id in needed:
            ids[record.id] = free_id(f"import/{component}/{record.id}", taken)
            taken.add(ids[record.id])
    return ids


def _addition(donor: Artifact, record: ObjectRecord, new_id: str) -> Addition:
    if isinstance(record, ResourceRecord):
        data = donor.read_range(record.offset, record.num_bytes)
        return Addition(ResourceSpec(new_id, data, record.encoding))
    spec = TensorSpec(
        new_id,
        record.shape,
        record.format,
        record.layout,
        divisors=record.divisors,
        bitrate_half_bits=record.bitrate_half_bits,
    )
    return Addition(spec, donor.payload, record.offset)


# --- new names -------------------------------------------------------------------------------


def _renamed(component: Component, ids: Mapping[str, str]) -> Component:
    resources = {role: ids[object_id] for role, object_id in component.resources.items()}
    return replace(component, resources=resources)


def _rebound(binding: Binding, ids: Mapping[str, str]) -> Binding:
    if binding.object is not None:
        return Binding(object=ids[binding.object])
    return Binding(parts=tuple(replace(part, object=ids[part.object]) for part in binding.parts))


def _reused(use: Use, ids: Mapping[str, str]) -> Use:
    auxiliaries = {role: _rebound(binding, ids) for role, binding in use.auxiliaries.items()}
    return replace(use, auxiliaries=auxiliaries)


def _provenance(base: Artifact, donor: Artifact, component: str) -> dict[str, Any]:
    imports = base.directory.provenance.get("component_imports", [])
    if not isinstance(imports, list):
        raise ArtifactError(
            "schema",
            "provenance.component_imports has the wrong type",
            path=base.path,
            expected="an array",
            found=repr(imports)[:40],
        )
    entry = {
        "component": component,
        "operation": OPERATION,
        "source_file": donor.path.name,
        "source_artifact_id": donor.artifact_id.hex(),
        "source_provenance": dict(donor.directory.provenance),
        "base_artifact_id": base.artifact_id.hex(),
    }
    return {**base.directory.provenance, "component_imports": [*imports, entry]}
