"""The numbers that describe an artifact; only the directory is looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.framing import CONTAINER_VERSION
from ninfer_format.container.schema import Binding, Component, Directory
from ninfer_format.inspect.shares import Share, add_up, total

_INTEGER_FORMATS = frozenset({"int32"})
"""Formats of tables such as token ids, whose elements are not parameters of a model."""


def architecture(config: Mapping[str, Any]) -> str | None:
    """The architecture that a component's configuration names, if it names one."""
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    model_type = config.get("model_type")
    return model_type if isinstance(model_type, str) else None


def summary_document(path: str, artifact: Artifact) -> dict[str, Any]:
    """The summary of an artifact as a JSON object.

    Args:
        path: The file as the user wrote it.
        artifact: The open artifact.
    """
    directory = artifact.directory
    tensors, resources = directory.tensors, directory.resources
    formats = add_up((record.format, record.elements, record.num_bytes) for record in tensors)
    layouts = add_up((record.layout, record.elements, record.num_bytes) for record in tensors)
    weights = total(share for name, share in formats.items() if name not in _INTEGER_FORMATS)
    owned = objects_by_component(directory)
    return {
        "path": path,
        "kind": "ninfer",
        "version": CONTAINER_VERSION,
        "artifact_id": artifact.artifact_id.hex(),
        "name": artifact.name,
        "architecture": architecture(directory.components["text"].config),
        "files": len(directory.files),
        "file_bytes": artifact.file_bytes,
        "payload_bytes": artifact.payload_bytes,
        "objects": len(directory.objects),
        "tensors": len(tensors),
        "resources": len(resources),
        "bindings": len(directory.bindings),
        "uses": len(directory.uses),
        "parameters": weights.elements,
        "bits_per_weight": round(weights.bits_per_element, 4),
        "formats": _shares(formats, artifact),
        "layouts": _shares(layouts, artifact),
        "encodings": dict(Counter(record.encoding for record in resources)),
        "components": {
            name: _component(component, owned[name], artifact)
            for name, component in directory.components.items()
        },
        "unassigned_objects": len(directory.objects) - len(set().union(*owned.values())),
    }


def objects_by_component(directory: Directory) -> dict[str, set[str]]:
    """The objects that each component needs: its parameters', their divisors' and resources.

    An object that several components share is in the set of each.
    """
    owned = {name: set(item.resources.values()) for name, item in directory.components.items()}
    owned["text"] |= _objects_of(directory, "proposal")
    for name in owned:
        owned[name] |= _objects_of(directory, name)
    return owned


def _objects_of(directory: Directory, residency: str) -> set[str]:
    """The objects of all parameters whose name begins with `residency`."""
    prefix = f"{residency}/"
    bindings = [item for name, item in directory.bindings.items() if name.startswith(prefix)]
    for use in directory.uses:
        if use.parameter.startswith(prefix):
            bindings.extend(use.auxiliaries.values())
    return {name for binding in bindings for name in _bound_objects(binding)}


def _bound_objects(binding: Binding) -> set[str]:
    if binding.object is not None:
        return {binding.object}
    return {part.object for part in binding.parts}


def _component(component: Component, objects: set[str], artifact: Artifact) -> dict[str, Any]:
    return {
        "architecture": architecture(component.config),
        "target": component.target,
        "objects": len(objects),
        "bytes": sum(artifact.record(name).num_bytes for name in objects),
        "resources": sorted(component.resources),
        "proposal": None if component.proposal is None else component.proposal.to_json(),
    }


def _shares(shares: Mapping[str, Share], artifact: Artifact) -> dict[str, Any]:
    return {name: share.to_json(artifact.payload_bytes) for name, share in shares.items()}
